"""Dry decisions: no IO, no clock, no thread, no randomness."""
