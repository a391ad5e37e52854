"""The memory of a process that only serves: what is given back, and when garbage is collected.

glibc keeps what is freed, tens of megabytes after one large page of records, and its bound rises
with what was asked for before. So the process looks at its heap now and then, and gives back what
is free. Where the C library cannot be asked (not glibc, or older than 2.33) nothing is done.

Nearly everything is freed when its last user lets go of it. Only cycles need Python's collector,
and it looks at everything that was made since it looked last, over and over while many requests are
under way. So it looks less often, and not at what was loaded at the start.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from typing import Final, Protocol

from penstock.model.limits import MIB

LOOK_S: Final = 5.0  # asking takes 0.2 ms, giving back about 1 ms for each 20 MiB
FREE_BYTES_MIN: Final = 8 * MIB  # new since the last time; less is soon used again
NEW_OBJECTS_MIN: Final = 10_000  # about 1 MB; a hundred requests under way are a tenth of it

_FIELDS: Final = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class Heap(Protocol):
    """The allocator of this process."""

    def free_bytes(self) -> int:
        """What is free inside it, also where its pages were given back."""
        ...

    def trim(self) -> None:
        """Give pages that hold nothing back to the system."""
        ...


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(field, ctypes.c_size_t) for field in _FIELDS]


class GlibcHeap:
    """Implements Heap. AttributeError where the C library has not what it takes."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._mallinfo2 = library.mallinfo2
        self._mallinfo2.restype = _Mallinfo2
        self._malloc_trim = library.malloc_trim
        self._malloc_trim.argtypes = [ctypes.c_size_t]

    def free_bytes(self) -> int:
        return int(self._mallinfo2().fordblks)

    def trim(self) -> None:
        self._malloc_trim(0)


class Trimming:
    """When to trim: what stays free after a trim is in pieces, and not worth another one."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._left_bytes = 0  # free after the last trim, and ever since

    def look(self) -> bool:
        """Trim if much was freed since the last time; whether it did."""
        free = self._heap.free_bytes()
        if free < self._left_bytes + FREE_BYTES_MIN:
            self._left_bytes = min(self._left_bytes, free)
            return False
        self._heap.trim()
        self._left_bytes = self._heap.free_bytes()
        return True


def collect_less_often() -> None:
    """For a process that only serves, once all that it needs is loaded."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS_MIN, *gc.get_threshold()[1:])


async def keep_trimmed() -> None:
    """Look at the heap of this process until cancelled. For a process that only serves."""
    try:
        trimming = Trimming(GlibcHeap())
    except (AttributeError, OSError):
        return
    while True:
        await asyncio.sleep(LOOK_S)
        trimming.look()
