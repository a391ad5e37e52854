"""Which handler answers a request, what the request needs, and which status an error gets."""
