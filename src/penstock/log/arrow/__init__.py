"""Batches as Arrow columns and streams. Needs pyarrow."""
