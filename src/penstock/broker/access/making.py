"""Making one thing that a quota counts, which takes a while."""

from __future__ import annotations

from contextlib import AbstractContextManager

from penstock.broker.access.quotas import Quotas


class Making:
    """Around it; QuotaExceeded if the tenant or the user may not have another one.

    As one of several nodes, what all nodes have counts. Inside, the thing is counted when it is
    stored (`Quotas.note`); what was taken for it goes back at the end.
    """

    def __init__(
        self, quotas: Quotas, kind: str, held: int, user: str | None, held_by_user: int
    ) -> None:
        """`user` None: it belongs to nobody."""
        self._quotas = quotas
        self._kind = kind
        self._user = user
        self._own: AbstractContextManager[None] | None = None
        if quotas.cluster is None:
            self._own = quotas.making_own(kind, held, user, held_by_user)

    async def __aenter__(self) -> None:
        if self._own is not None:
            self._own.__enter__()
        elif self._quotas.cluster is not None:
            await self._quotas.cluster.take(self._kind, self._user)

    async def __aexit__(self, *error: object) -> None:
        if self._own is not None:
            self._own.__exit__(None, None, None)
        elif self._quotas.cluster is not None:
            self._quotas.cluster.give(self._kind, self._user)
