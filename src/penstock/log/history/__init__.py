"""History: sealed records of a topic as an open table of Parquet files. Needs pyarrow, deltalake."""
