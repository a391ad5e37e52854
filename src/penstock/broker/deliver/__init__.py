"""Committed messages on their way to readers: routes, catching up, history, retained, streams."""
