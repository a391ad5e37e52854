"""The job `archive`: topics into a Delta table."""
