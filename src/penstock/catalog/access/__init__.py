"""Who may log in, with what, and which rules hold: durable in SQL."""
