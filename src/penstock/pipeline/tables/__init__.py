"""A topic as one table of Spark: files of its history, and the newest records of its log."""
