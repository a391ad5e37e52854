"""Wiring: the only room that chooses backends, and the brokers programs embed."""
