"""Shared subscriptions: several members, one position."""
