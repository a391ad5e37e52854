"""Messages as Kafka stores them: its record batches, and back to batches of a log."""
