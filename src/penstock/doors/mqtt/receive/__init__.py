"""What clients send after their login: publishes, subscriptions, acknowledgements."""
