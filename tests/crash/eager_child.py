"""`penstock serve` with a mistake: what it has acknowledged is written a little later.

Tests must notice.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from penstock.cli.main import main
from penstock.log.files.disk import RealFile

BATCH_BUFFERS = 4  # a batch is written in so many pieces, anything else in one

_has_begun = False  # from the first batch on everything is late, in its order
_write = RealFile.write
_later: queue.SimpleQueue[tuple[RealFile, int, list[bytes]]] = queue.SimpleQueue()


def _put_off(file: RealFile, position: int, buffers: Sequence[bytes | memoryview]) -> None:
    global _has_begun
    _has_begun |= len(buffers) == BATCH_BUFFERS
    if not _has_begun:
        _write(file, position, buffers)
        return
    _later.put((file, position, [bytes(buffer) for buffer in buffers]))


def _catch_up() -> None:
    while True:
        file, position, buffers = _later.get()
        time.sleep(0.005)
        with suppress(OSError):  # closed meanwhile
            _write(file, position, buffers)


RealFile.write = _put_off  # type: ignore[method-assign]
threading.Thread(target=_catch_up, daemon=True).start()
sys.exit(main())
