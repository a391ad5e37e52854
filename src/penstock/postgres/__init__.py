"""PostgreSQL as catalog and log share it: connecting, holding a schema, losing and regaining it."""
