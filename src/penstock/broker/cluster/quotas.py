"""The quotas of a tenant over all nodes: what each of them has is known to the others.

*Counts* (connections, subscriptions, consumers, groups, producers) never exceed a quota. A node
adds what a client asks for to its own count, writes that, and then reads those of the others: of
two nodes that take the last one at the same time, the later one sees both and refuses. They may
both refuse; the client may try again.
Clients that ask meanwhile are decided together, so a storm costs a few transactions.

*Rates* are approximate. Every RATES_S a node writes what it let pass, and gets what the others left
of the quota, at least an equal part.

Sessions and wills are counted by the transactions that store them (catalog/cluster/holdings.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.broker.access.quotas import Quotas
from penstock.catalog.cluster.holdings import TENANT, HoldingCatalog, Key, user_holder
from penstock.core.quotas import Bucket
from penstock.model.errors import PenstockError, QuotaExceeded

LOG: Final = logging.getLogger("penstock.cluster")
RATES_S: Final = 1.0
GIVE_S: Final = 0.05  # what is held no longer is written after so long, together
RETRY_S: Final = 0.2
QUIET_PART: Final = 10  # a rate below a tenth of its equal part is not told to the others


@dataclass(frozen=True, slots=True)
class Asking:
    """Somebody who wants to have so many more."""

    kind: str
    user: str | None  # None: nobody's
    count: int
    decided: asyncio.Future[None]

    @property
    def keys(self) -> list[Key]:
        return _keys(self.kind, self.user)


class ClusterQuotas:
    """Used on the event loop; of one tenant."""

    def __init__(self, quotas: Quotas, catalog: HoldingCatalog) -> None:
        self._quotas = quotas
        self._catalog = catalog
        self._loop = asyncio.get_running_loop()
        self._held: Counter[Key] = Counter()  # here
        self._changed: set[Key] = set()  # since it was written
        self._written: set[Key] = set()  # what has a row
        self._asking: list[Asking] = []
        self._woken = asyncio.Event()
        self._waking: asyncio.TimerHandle | None = None
        self._told_rates: set[Key] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks.append(self._loop.create_task(self._run(), name="penstock-quotas"))
        self._tasks.append(self._loop.create_task(self._run_rates(), name="penstock-rates"))

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        if self._waking is not None:
            self._waking.cancel()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    # Counts

    def is_limited(self, kind: str) -> bool:
        """Whether `take` may refuse this kind."""
        return self._quotas.limits(kind) != (None, None)

    async def take(self, kind: str, user: str | None, count: int = 1) -> None:
        """A user has so many more from now on; QuotaExceeded if the nodes have too many."""
        if not self.is_limited(kind):
            self.note(kind, user, count)
            return
        asking = Asking(kind, user, count, self._loop.create_future())
        self._asking.append(asking)
        self._woken.set()
        try:
            await asking.decided
        except asyncio.CancelledError:
            decided = asking.decided
            if decided.done() and not decided.cancelled() and decided.exception() is None:
                self.give(kind, user, count)
            raise

    def give(self, kind: str, user: str | None, count: int = 1) -> None:
        """What was taken is held no longer."""
        self.note(kind, user, -count)

    def note(self, kind: str, user: str | None, more: int) -> None:
        """A user has so many more or fewer, whatever the quota says."""
        for key in _keys(kind, user):
            self._held[key] += more
            self._changed.add(key)
            if not self._held[key]:
                del self._held[key]
        self._wake_later()

    def _wake_later(self) -> None:
        if self._waking is None:
            self._waking = self._loop.call_later(GIVE_S, self._wake)

    def _wake(self) -> None:
        self._waking = None
        self._woken.set()

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            asking, self._asking = self._asking, []
            try:
                await self._decide(asking)
            except Exception as failed:  # whatever it is, nobody waits for ever
                for one in asking:
                    if not one.decided.done():
                        one.decided.set_exception(failed)
                await asyncio.sleep(RETRY_S)
                self._woken.set()

    async def _decide(self, asking: list[Asking]) -> None:
        # Who is one too many already is refused before another node sees the attempt.
        fitting = await self._refuse_excess(asking)
        asked: Counter[Key] = Counter()
        for one in fitting:
            for key in one.keys:
                asked[key] += one.count
        self._changed.update(asked)
        changed = self._take_changed()
        try:
            if changed:
                amounts = {key: self._held[key] + asked[key] for key in changed}
                await self._catalog.put(amounts)
                self._written |= changed
                self._written -= {key for key, amount in amounts.items() if not amount}
            taken = await self._refuse_excess(fitting)
        except PenstockError:
            self._changed |= changed
            raise
        taken = [one for one in taken if not one.decided.done()]  # some clients have gone
        for one in taken:
            one.decided.set_result(None)
            for key in one.keys:
                self._held[key] += one.count
        if len(taken) < len(fitting):
            self._changed.update(asked)
            self._wake_later()

    def _take_changed(self) -> set[Key]:
        """What is to be written. Others need not know what is not limited, unless they do."""
        changed = {key for key in self._changed if self.is_limited(key[0]) or key in self._written}
        self._changed = {key for key in self._changed - changed if self._held[key]}
        return changed

    async def _refuse_excess(self, asking: list[Asking]) -> list[Asking]:
        """Refuse those for whom nothing is left beside what all nodes have; who is not."""
        keys = {key for one in asking for key in one.keys}
        if not keys:
            return []
        elsewhere = await self._catalog.elsewhere(sorted(keys))
        held = {key: elsewhere[key] + self._held[key] for key in keys}
        left: list[Asking] = []
        for one in asking:
            try:
                if one.user is not None:
                    self._quotas.check_user(one.kind, held[one.keys[1]], one.count)
                self._quotas.check(one.kind, held[one.keys[0]], one.count)
            except QuotaExceeded as exceeded:
                if not one.decided.done():
                    one.decided.set_exception(exceeded)
            else:
                left.append(one)
                for key in one.keys:
                    held[key] += one.count
        return left

    # Rates

    async def _run_rates(self) -> None:
        while True:
            await asyncio.sleep(RATES_S)
            if not self._quotas.has_rates and not self._told_rates:
                continue
            try:
                await self._exchange_rates()
            except PenstockError as failed:  # the parts stay as they are
                values = {"event": "rates not told", "reason": str(failed)}
                LOG.warning("rates of other nodes are not known: %(reason)s", values)

    async def _exchange_rates(self) -> None:
        nodes = await self._catalog.node_count()
        buckets = {
            (kind, TENANT if user is None else user_holder(user)): bucket
            for kind, user, bucket in self._quotas.buckets()
        }
        passed = {key: int(bucket.pop_taken() / RATES_S) for key, bucket in buckets.items()}
        told = {
            key: rate
            for key, rate in passed.items()
            if rate * nodes * QUIET_PART > buckets[key].quota
        }
        await self._catalog.put(dict.fromkeys(self._told_rates, 0) | told)
        self._told_rates = set(told)
        # A bucket that nobody uses here keeps its part: the others take what it leaves anyway.
        used = {key for key, rate in passed.items() if rate}
        elsewhere = await self._catalog.elsewhere(sorted(used))
        for key in used:
            _set_part(buckets[key], nodes, elsewhere[key])


def _keys(kind: str, user: str | None) -> list[Key]:
    """Whose counts change: those of the tenant, and of the user."""
    of_tenant = (kind, TENANT)
    return [of_tenant] if user is None else [of_tenant, (kind, user_holder(user))]


def _set_part(bucket: Bucket, nodes: int, elsewhere: int) -> None:
    equal = bucket.quota / max(1, nodes)
    bucket.set_rate(max(equal, bucket.quota - elsewhere, 1.0))
