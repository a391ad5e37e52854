"""The database below the catalog: SQLite or PostgreSQL, on one thread."""
