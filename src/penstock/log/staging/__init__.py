"""Batches that were encoded elsewhere, on their way into logs."""
