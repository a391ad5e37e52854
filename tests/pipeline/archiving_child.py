"""A driver that archives topic `in` into a table, a few records at a time, until all are there."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.pipeline import archive, session
from tests.pipeline.conftest import small_spark


def main() -> None:
    data, table, scratch = sys.argv[1:]
    spark = session("archiving", master="local[2]", conf=small_spark(Path(scratch)))
    print("started", flush=True)
    archive("in", table, path=data, batch_records=100, spark=spark)
    print("done", flush=True)


if __name__ == "__main__":
    main()
