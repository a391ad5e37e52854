"""Bridges: this broker as a client of another MQTT broker, in both directions."""
