"""Append, read, recover, trim, seal and verify logs."""
