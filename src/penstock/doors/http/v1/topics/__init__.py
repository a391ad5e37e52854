"""Endpoints of `/v1` about topics, their records, and who reads them."""
