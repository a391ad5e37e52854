"""New grants for everybody after a change of rules, some principals at a time.

Thousands of principals take longer than others may wait for the event loop. Until its turn a
principal has its old grants; a change that is awaited has reached everybody. Every tenant has a
renewal of its own: one whose rules change all the time does not hold up the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.broker.access.identities import Identity
from penstock.core.access import Principal
from penstock.model.record import TenantId

SLICE: Final = 250  # principals with rules of their own: some 4 ms

Tenants = set[TenantId | None]  # None: all of them
Renew = Callable[[list[Identity]], set[Principal]]


class Renewals:
    """Used on the event loop. `renew` gives some their grants; `done` hears that all have them."""

    def __init__(self, renew: Renew, done: Callable[[Tenants, set[Principal]], None]) -> None:
        self._renew = renew
        self._done = done
        self._by_tenant: dict[TenantId | None, _Renewal] = {}

    def begin(self, identities: list[Identity], tenant: TenantId | None) -> None:
        """All of these, at once if they are few; a renewal that is under way begins anew."""
        self._of(tenant).begin(identities)

    async def wait(self, tenant: TenantId | None) -> None:
        """Until everybody has the grants of the last change."""
        await self._of(tenant).wait()

    def _of(self, tenant: TenantId | None) -> _Renewal:
        if tenant not in self._by_tenant:
            self._by_tenant[tenant] = _Renewal(self._renew, partial(self._done, {tenant}))
        return self._by_tenant[tenant]


class _Renewal:
    def __init__(self, renew: Renew, done: Callable[[set[Principal]], None]) -> None:
        self._renew = renew
        self._done = done
        self._left: list[Identity] = []  # to be renewed, the last ones first
        self._renewed: set[Principal] = set()
        self._finished: asyncio.Future[None] | None = None  # None: nothing is under way

    def begin(self, identities: list[Identity]) -> None:
        self._left = identities
        if self._finished is not None:
            return
        self._step()
        if self._left:
            loop = asyncio.get_running_loop()
            self._finished = loop.create_future()
            loop.call_soon(self._go_on)

    def _step(self) -> None:
        some = self._left[-SLICE:]
        del self._left[-SLICE:]
        self._renewed |= self._renew(some)
        if not self._left:
            renewed, self._renewed = self._renewed, set()
            self._done(renewed)

    def _go_on(self) -> None:
        assert self._finished is not None
        self._step()
        if self._left:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._finished.set_result(None)
            self._finished = None

    async def wait(self) -> None:
        while self._finished is not None:
            await asyncio.shield(self._finished)
