"""A broker as one of several nodes on the same Kafka and the same PostgreSQL."""
