"""Records that only a history holds: read by a process of its own, and batches again."""
