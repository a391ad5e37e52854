"""The job `clean`: removes expired rows of Delta tables and merges small files."""
