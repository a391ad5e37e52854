"""The MQTT door: connections, from bytes to the exchange and back."""
