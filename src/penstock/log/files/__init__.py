"""Logs in segment files: write, recover, seal, read, verify."""
