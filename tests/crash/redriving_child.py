"""A real process that redrives dead letters and kills itself at the n-th moment that matters.

Usage: redriving_child.py DIRECTORY N
Moments are before and after each save of the catalog; the append lies between two of them.
"""

from __future__ import annotations

import os
import signal
import sys

from penstock import Broker
from penstock.catalog.queue.redrives import RedriveCatalog, RedriveRow

_save = RedriveCatalog.save
_left = int(sys.argv[2])


def _moment() -> None:
    global _left
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    _left -= 1


async def _save_or_die(catalog: RedriveCatalog, row: RedriveRow) -> None:
    _moment()
    await _save(catalog, row)
    _moment()


if __name__ == "__main__":
    RedriveCatalog.save = _save_or_die  # type: ignore[method-assign]
    with Broker(sys.argv[1]) as broker:
        broker.redrive("workers", "jobs")
