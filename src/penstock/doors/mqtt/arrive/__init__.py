"""Clients that come in: bytes before the login, the login, the session, the will."""
