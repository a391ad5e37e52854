"""What is kept for MQTT clients: sessions, shares, retained messages, wills."""
