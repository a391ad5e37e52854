"""Sealing in a process of its own, so that it never takes the interpreter from the event loop.

The child only writes new files next to the closed segments; replacing the segments is the
broker's. It ends when the broker does, however that ends. Sealing that fails is tried again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from penstock.core.erasure import Erasure
from penstock.log.child import NICENESS, Child
from penstock.log.files.commit import ThreadWorkers
from penstock.log.files.disk import RealDisk
from penstock.log.files.segment import Segment
from penstock.log.files.upkeep.erasing import adopt_erased, count_erasable, write_erased
from penstock.log.files.upkeep.seal import SEALING, adopt_sealed, write_sealed
from penstock.model.errors import CorruptError

_CHILD: Final = "from penstock.log.files.upkeep.sealer import main; main()"


class Order(msgspec.Struct):
    """One segment to seal; a line of JSON to the child."""

    path: str
    base_offset: int
    end_offset: int
    erasure: Erasure | None = None  # instead: without these records
    dry_run: bool = False  # only count them


class Answer(msgspec.Struct):
    """The path of the sealed segment, or the error; a line of JSON from the child."""

    path: str = ""  # empty if there was nothing to erase
    count: int = 0  # records to erase
    error: str = ""
    errno: int = 0
    is_corrupt: bool = False


class SealerChild:
    """Has one segment sealed at a time; blocking, called on worker threads."""

    def __init__(self) -> None:
        self._child = Child(_CHILD)

    def seal(self, segment: Segment) -> Segment:
        """As `seal_segment`. OSError when there is no child to be had, or it died."""
        order = Order(str(segment.path), segment.base_offset, segment.end_offset)
        return adopt_sealed(segment, Path(self._ask(order).path))

    def erase(self, segment: Segment, erasure: Erasure, *, dry_run: bool) -> tuple[Segment, int]:
        """As `erase_segment`; errors as `seal`."""
        path = str(segment.path)
        answer = self._ask(Order(path, segment.base_offset, segment.end_offset, erasure, dry_run))
        if answer.path:
            segment = adopt_erased(segment, Path(answer.path))
        return segment, answer.count

    def _ask(self, order: Order) -> Answer:
        answer = msgspec.json.decode(self._child.ask(msgspec.json.encode(order)), type=Answer)
        if answer.is_corrupt:
            raise CorruptError(answer.error)
        if answer.error:
            raise OSError(answer.errno, answer.error)
        return answer

    def close(self) -> None:
        """Let the child finish and end; the next segment starts another."""
        self._child.rest()


class ServingWorkers(ThreadWorkers):
    """Workers of a broker that serves: sealing happens in a process of its own."""

    _sealer: SealerChild | None = None

    def seal(self, segment: Segment) -> Awaitable[Segment]:
        return self.run(partial(self._child().seal, segment))

    def erase(
        self, segment: Segment, erasure: Erasure, *, dry_run: bool
    ) -> Awaitable[tuple[Segment, int]]:
        return self.run(partial(self._child().erase, segment, erasure, dry_run=dry_run))

    def _child(self) -> SealerChild:
        if self._sealer is None:
            self._sealer = SealerChild()
        return self._sealer

    def close(self) -> None:
        super().close()
        if self._sealer is not None:
            self._sealer.close()


def main() -> None:
    """Seal what the lines of standard input name, until it ends."""
    os.nice(NICENESS)
    disk = RealDisk()
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        segment = Segment(disk, Path(order.path), order.base_offset, order.end_offset)
        try:
            answer = _carry_out(segment, order)
        except CorruptError as broken:
            answer = Answer(error=str(broken), is_corrupt=True)
        except OSError as failed:
            answer = Answer(error=failed.strerror or str(failed), errno=failed.errno or 0)
        try:
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # nobody is there to put it in its place
            if answer.path:
                disk.remove(Path(answer.path))
            os._exit(1)


def _carry_out(segment: Segment, order: Order) -> Answer:
    # A name of its own: a broker that starts after a crash may seal the same segment.
    suffix = f"{SEALING}-{os.getpid()}"
    if order.erasure is None:
        return Answer(str(write_sealed(segment, suffix)))
    count = count_erasable(segment, order.erasure)
    if not count or order.dry_run:
        return Answer(count=count)
    return Answer(str(write_erased(segment, order.erasure, suffix)), count)
