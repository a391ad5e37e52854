"""A driver that runs a declared pipeline until it has taken all records, a few at a time."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.pipeline import session, sql
from tests.pipeline.conftest import small_spark


def main() -> None:
    data, file, scratch = sys.argv[1:]
    spark = session("declared", master="local[2]", conf=small_spark(Path(scratch)))
    print("started", flush=True)
    sql(file, path=data, once=True, spark=spark)
    print("done", flush=True)


if __name__ == "__main__":
    main()
