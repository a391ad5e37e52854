"""Commands that speak MQTT, and those about MQTT clients."""
