"""Decisions about delivery: who gets a record, when, and what is out."""
