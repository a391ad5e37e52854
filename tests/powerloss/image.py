"""The content of one file as pages, so that copies are cheap and pages can be lost one by one.

Invariant: a page that is missing is zeros, no stored page is all zeros, and every byte at or past
`size` is zero.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from .trace import Change, Truncate, Write, Zero

PAGE_BYTES = 4096  # what the page cache writes back at once
SECTOR_BYTES = 512  # what a disk writes at once
ZERO_PAGE = bytes(PAGE_BYTES)


@dataclass(slots=True)
class Image:
    pages: dict[int, bytes] = field(default_factory=dict)
    size: int = 0

    @classmethod
    def of(cls, data: bytes) -> Image:
        image = cls()
        image.apply(Write("", 0, 0, data))
        return image

    def copy(self) -> Image:
        return Image(self.pages.copy(), self.size)

    def page(self, number: int) -> bytes:
        return self.pages.get(number, ZERO_PAGE)

    def put_page(self, number: int, page: bytes) -> None:
        if page == ZERO_PAGE:
            self.pages.pop(number, None)
        else:
            self.pages[number] = page

    def apply(self, change: Change) -> None:
        if isinstance(change, Truncate):
            self.resize(change.size)
            return
        for number in pages_of(change):
            self._put(number, change)
        self.size = max(self.size, end_of(change))

    def _put(self, number: int, change: Write | Zero) -> None:
        page_start = number * PAGE_BYTES
        start = max(change.offset, page_start)
        end = min(end_of(change), page_start + PAGE_BYTES)
        if isinstance(change, Write):
            piece = change.data[start - change.offset : end - change.offset]
        else:
            piece = ZERO_PAGE[: end - start]
        old = self.page(number)
        self.put_page(number, old[: start - page_start] + piece + old[end - page_start :])

    def resize(self, size: int) -> None:
        if size < self.size:
            kept, tail = divmod(size, PAGE_BYTES)
            for number in [n for n in self.pages if n >= kept + (tail > 0)]:
                del self.pages[number]
            if tail and kept in self.pages:
                self.put_page(kept, self.pages[kept][:tail] + ZERO_PAGE[tail:])
        self.size = size

    def read(self) -> bytes:
        count = -(-self.size // PAGE_BYTES)
        return b"".join(self.page(n) for n in range(count))[: self.size]

    def save(self, path: str) -> None:
        """Write the file, with holes where the pages are zeros."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            for number in sorted(self.pages):
                os.pwrite(fd, self.pages[number], number * PAGE_BYTES)
            os.ftruncate(fd, self.size)
        finally:
            os.close(fd)


def end_of(change: Write | Zero) -> int:
    """One past the last byte written."""
    return change.offset + (len(change.data) if isinstance(change, Write) else change.length)


def pages_of(change: Write | Zero) -> range:
    return range(change.offset // PAGE_BYTES, -(-end_of(change) // PAGE_BYTES))
