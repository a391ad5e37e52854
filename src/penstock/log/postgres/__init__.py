"""Logs in tables of PostgreSQL."""
