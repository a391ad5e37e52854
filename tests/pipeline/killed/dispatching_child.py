"""A driver that dispatches all topics into tables, a few records at a time."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.pipeline import dispatch, session
from tests.pipeline.conftest import small_spark


def main() -> None:
    data, to, scratch = sys.argv[1:]
    spark = session("dispatching", master="local[2]", conf=small_spark(Path(scratch)))
    print("started", flush=True)
    dispatch(to=to, path=data, batch_records=100, spark=spark)
    print("done", flush=True)


if __name__ == "__main__":
    main()
