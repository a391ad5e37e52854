"""Messages on their way into the logs: runs, submissions, idempotency keys, staged batches."""
