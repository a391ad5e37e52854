"""The HTTP door: our own HTTP/1.1 server, and what it answers."""
