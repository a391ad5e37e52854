"""The job `stats`: counts what went through topics, and draws it."""
