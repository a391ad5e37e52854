"""Positions that readers keep by name: consumers, leased groups, and the ids of the HTTP queue."""
