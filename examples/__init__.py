"""Five small programs; docs/EXAMPLES.md explains them, and tests run them."""
