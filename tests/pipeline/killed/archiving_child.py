"""A driver that archives topic `in` into a table, a few records at a time, until all are there.

Arguments: data directory, table, a scratch directory, and where to die, if anywhere: `before` or
`after` the commit of a batch, and its number.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from penstock.pipeline import archive, session
from tests.pipeline.conftest import small_spark


def die_at(when: str, number: int) -> None:
    """Spark has written its files; the table's commit is the other one."""
    commit = DeltaTable.create_write_transaction
    count = 0

    def dying(table: Any, *arguments: Any, **named: Any) -> None:
        nonlocal count
        if when == "after":
            commit(table, *arguments, **named)
        if count == number:
            os.killpg(os.getpid(), signal.SIGKILL)
        count += 1
        if when == "before":
            commit(table, *arguments, **named)

    DeltaTable.create_write_transaction = dying


def main() -> None:
    data, table, scratch, *death = sys.argv[1:]
    if death:
        die_at(death[0], int(death[1]))
    spark = session("archiving", master="local[1]", conf=small_spark(Path(scratch)))
    print("started", flush=True)
    archive("in", table, path=data, batch_records=100, spark=spark)
    print("done", flush=True)


if __name__ == "__main__":
    main()
