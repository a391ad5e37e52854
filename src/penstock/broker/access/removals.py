"""Users who are being removed: a broker that runs keeps one, or everybody could come in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from penstock.model.errors import RefusedError
from penstock.model.record import TenantId

UserKey = tuple[TenantId, str]


class Removals:
    """Used on the event loop. Removals that go on at the same time know of each other."""

    def __init__(self, users: Callable[[], Collection[UserKey]]) -> None:
        self._users = users
        self._leaving: list[UserKey] = []

    @contextmanager
    def removing(self, gone: Collection[UserKey], refusal: str) -> Iterator[None]:
        """Around removing these; RefusedError with this text if no other user would be left."""
        if gone and not set(self._users()).difference(self._leaving, gone):
            raise RefusedError(refusal)
        self._leaving.extend(gone)
        try:
            yield
        finally:
            for key in gone:
                self._leaving.remove(key)
