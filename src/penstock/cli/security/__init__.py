"""Commands that say who may log in, and who may do what."""
