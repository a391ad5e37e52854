"""The endpoints of `/v1`."""
