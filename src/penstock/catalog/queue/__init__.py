"""What is kept for readers and writers of topics: positions, groups, idempotency keys."""
