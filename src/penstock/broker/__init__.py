"""The engine: publish, commit, consume, stream, retention."""
