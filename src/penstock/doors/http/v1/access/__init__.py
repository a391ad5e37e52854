"""Endpoints of `/v1` about who may log in and who may do what."""
