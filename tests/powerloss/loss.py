"""What a power loss leaves of changes that no sync covered.

Three policies: `DROP_ALL` (the strictest disk: nothing unsynced survives), `KEEP_ALL` (what kill -9
leaves) and `RandomLoss(seed)` (a disk that wrote back whatever it liked, in any order).

Invariant of all: what a sync covered survives; each entry of a directory, each page and each size
shows a state it really had since then, except that a torn page mixes sectors of two of its states.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .image import PAGE_BYTES, SECTOR_BYTES, Image, pages_of
from .trace import Change, Truncate

TORN_SHARE = 0.2  # of the pages with a choice
KEPT_SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)  # extremes find bugs that fair coins miss


@dataclass(eq=False, slots=True)
class EntryChange:
    """One creation, removal, rename or link: all of its entries change, or none.

    `needs` are the pending changes that survive if this one does: earlier ones of the same entry,
    and everything inside a directory before its removal. Hence each entry keeps a prefix of its
    history, and a file is never lost by being renamed.
    """

    at: int  # index of the event
    entries: tuple[tuple[int, str, int | None], ...]  # (directory, name, node or None)
    unsynced: set[int]  # directories whose sync it still waits for
    needs: list[EntryChange] = field(default_factory=list)


class Policy(Protocol):
    def entries(self, pending: Sequence[EntryChange], rng: random.Random) -> list[EntryChange]:
        """The pending changes of directories that survive, before closing them over `needs`."""
        ...

    def content(self, base: Image, pending: Sequence[Change], rng: random.Random) -> Image:
        """What is left of a file; must not change `base`."""
        ...

    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, slots=True)
class DropAll:
    seed: int = 0

    def entries(self, pending: Sequence[EntryChange], rng: random.Random) -> list[EntryChange]:
        return []

    def content(self, base: Image, pending: Sequence[Change], rng: random.Random) -> Image:
        return base.copy()


@dataclass(frozen=True, slots=True)
class KeepAll:
    seed: int = 0

    def entries(self, pending: Sequence[EntryChange], rng: random.Random) -> list[EntryChange]:
        return list(pending)

    def content(self, base: Image, pending: Sequence[Change], rng: random.Random) -> Image:
        image = base.copy()
        for change in pending:
            image.apply(change)
        return image


@dataclass(frozen=True, slots=True)
class RandomLoss:
    seed: int

    def entries(self, pending: Sequence[EntryChange], rng: random.Random) -> list[EntryChange]:
        share = rng.choice(KEPT_SHARES)
        return [change for change in pending if rng.random() < share]

    def content(self, base: Image, pending: Sequence[Change], rng: random.Random) -> Image:
        if not pending:
            return base.copy()
        history = _History(base)
        for change in pending:
            history.add(change)
        return history.pick(rng)


DROP_ALL = DropAll()
KEEP_ALL = KeepAll()


def all_policies(seeds: Iterable[int]) -> list[Policy]:
    """The strictest disk, kill -9, and a random disk for each seed."""
    return [DROP_ALL, KEEP_ALL, *(RandomLoss(seed) for seed in seeds)]


@dataclass(frozen=True, slots=True)
class _Cut:
    """A truncation: pages from `freed` on lost their blocks, `edge` may be cut in the middle."""

    step: int
    edge: int
    freed: int


class _History:
    """Every state that each page and the size went through since the last sync.

    Step k is after the k-th pending change. Sizes form one line (the inode is written as a whole),
    pages are independent of each other. A page that a truncation freed is tied to the size: while
    the truncation has not survived, the inode still points to the old block, so nothing later
    shows; once it has, the old block is gone.
    """

    def __init__(self, base: Image) -> None:
        self._base = base
        self._now = base.copy()
        self._sizes = [base.size]
        self._pages: dict[int, list[tuple[int, bytes]]] = {}  # page → (step, state)
        self._cuts: list[_Cut] = []

    def add(self, change: Change) -> None:
        touched: Iterable[int]
        if isinstance(change, Truncate):
            edge, tail = divmod(change.size, PAGE_BYTES)
            if change.size < self._now.size:
                self._cuts.append(_Cut(len(self._sizes), edge, edge + (tail > 0)))
            touched = [number for number in self._now.pages if number >= edge]
        else:
            touched = pages_of(change)
        self._now.apply(change)
        for number in touched:
            states = self._pages.setdefault(number, [(0, self._base.page(number))])
            page = self._now.page(number)
            if page != states[-1][1]:
                states.append((len(self._sizes), page))
        self._sizes.append(self._now.size)

    def pick(self, rng: random.Random) -> Image:
        sizes = self._sizes
        steps = [n for n in range(len(sizes)) if n == 0 or sizes[n] != sizes[n - 1]]
        step = rng.choice((steps[0], steps[-1], rng.choice(steps)))
        share = rng.choice(KEPT_SHARES)
        image = self._base.copy()
        image.size = max(sizes)
        for number in sorted(self._pages):
            image.put_page(number, _pick_page(self._possible(number, step), share, rng))
        image.resize(sizes[step])
        return image

    def _possible(self, number: int, size_step: int) -> list[bytes]:
        """The states in which a page may be found when the size is that of `size_step`."""
        oldest, newest = 0, len(self._sizes)
        for cut in self._cuts:
            if cut.step <= size_step and number >= cut.edge:
                oldest = cut.step
            elif cut.step > size_step and number >= cut.freed:
                newest = cut.step - 1
                break
        possible: list[bytes] = []
        for step, page in self._pages[number]:
            if step <= oldest:
                possible.clear()
            if step <= newest:
                possible.append(page)
        return possible


def _pick_page(states: list[bytes], share: float, rng: random.Random) -> bytes:
    if len(states) == 1:
        return states[0]
    if rng.random() < TORN_SHARE:
        old, new = sorted(rng.sample(range(len(states)), 2))
        return _torn(states[old], states[new], rng)
    if rng.random() < share:
        return states[-1]
    return rng.choice((states[0], rng.choice(states)))


def _torn(old: bytes, new: bytes, rng: random.Random) -> bytes:
    """Some sectors new, the others old: the first ones in order, or any of them."""
    sectors = range(0, PAGE_BYTES, SECTOR_BYTES)
    if rng.random() < 0.5:
        cut = rng.choice(sectors)
        fresh = {at for at in sectors if at < cut}
    else:
        fresh = {at for at in sectors if rng.random() < 0.5}
    pieces = ((new if at in fresh else old)[at : at + SECTOR_BYTES] for at in sectors)
    return b"".join(pieces)
