"""Spark rows into topics, exactly once."""
