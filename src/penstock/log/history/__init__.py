"""History: sealed records of a topic as an open table. Needs pyarrow and deltalake."""
