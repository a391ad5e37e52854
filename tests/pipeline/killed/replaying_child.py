"""A driver that replays topic `in` into topic `out`, a few records at a time."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.pipeline import replay, session
from tests.pipeline.conftest import small_spark


def main() -> None:
    data, checkpoint, scratch = sys.argv[1:]
    spark = session("replaying", master="local[2]", conf=small_spark(Path(scratch)))
    print("started", flush=True)
    replay("in", "out", checkpoint=checkpoint, path=data, rate=300, spark=spark)
    print("done", flush=True)


if __name__ == "__main__":
    main()
