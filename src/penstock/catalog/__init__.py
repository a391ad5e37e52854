"""Durable metadata in SQL."""
