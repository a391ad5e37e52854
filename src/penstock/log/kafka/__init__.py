"""Logs in topics of Kafka."""
