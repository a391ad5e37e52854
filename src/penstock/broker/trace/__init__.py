"""Traces: what becomes of single messages, for people who ask where theirs is."""
