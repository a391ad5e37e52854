"""MQTT 3.1, 3.1.1 and 5.0 without IO: bytes to packets and back, state tables, reason codes."""
