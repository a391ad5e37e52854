"""Moving a data directory into Kafka and PostgreSQL."""
