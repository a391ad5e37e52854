"""Wills: published for clients that go without saying so, also when the broker itself was killed.

A will is a row in the catalog from before its client's CONNACK on. Publishing it appends its id as
a mark beside the message, and the row goes in the checkpoint that has seen the mark: a repeat after
a crash is recognised, so a will is in the log at most once. Until it is published only its id is
in memory; what waits hangs on one timer.

When a broker ends, however it does, wills stay rows. Its next start gives clients a grace to come
back in before it publishes them.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from penstock.broker.access.owners import Owners
from penstock.broker.deliver.routes import TopicWanted
from penstock.broker.exchange import Exchange
from penstock.broker.session.session import Session
from penstock.broker.session.will_marks import will_mark
from penstock.broker.upkeep.upkeep import WILLS
from penstock.catalog.session.wills import NOT_DUE, StoredWill, WillCatalog
from penstock.core.access import Principal
from penstock.core.delivery.run import Run, record_flags
from penstock.core.quotas import WILLS as WILLS_QUOTA
from penstock.core.quotas import Limits
from penstock.model.clock import Clock
from penstock.model.errors import NotAuthorized, PenstockError
from penstock.model.limits import WILL_GRACE_S
from penstock.model.will import NO_WILL, Will

SENT_AT_ONCE: Final = 100  # loaded and on their way to the disk: ~13 MB at their largest
RETRY_S: Final = 1.0  # a log that takes nothing is asked again after it
TIMER_S_MAX: Final = 3_600.0  # some wait for a century, and some loops do not like that
STALE_MAX: Final = 64  # of those called off, as long as they are not most of what waits


class Waiting:
    """A will whose client has gone."""

    __slots__ = ("attempted", "client_id", "due_s", "is_forgiving", "is_over", "owner", "will_id")

    def __init__(
        self, will_id: int, client_id: str, owner: str, due_s: float, *, is_forgiving: bool
    ) -> None:
        self.will_id = will_id
        self.client_id = client_id
        self.owner = owner
        self.due_s = due_s  # monotonic
        self.is_forgiving = is_forgiving  # the broker's end, not the client's: any return ends it
        self.is_over = False  # called off, or being published
        self.attempted: asyncio.Future[None] | None = None

    def __lt__(self, other: Waiting) -> bool:
        return (self.due_s, self.will_id) < (other.due_s, other.will_id)


class Firing:
    """Implements Waiter for a will that is being published."""

    def __init__(
        self, exchange: Exchange, will_id: int, done: asyncio.Future[Exception | None]
    ) -> None:
        self._exchange = exchange
        self._will_id = will_id
        self._done = done

    @property
    def has_given_up(self) -> bool:
        return False

    def committed(self, offset: int) -> None:
        # In the tick of the commit: no checkpoint passes the mark and leaves the row.
        self._exchange.store.will_marks.note(self._will_id)
        self._done.set_result(None)

    def refused(self, error: Exception) -> None:
        if isinstance(error, NotAuthorized):
            self.committed(0)  # dropped and counted: asking again would not help
        else:
            self._done.set_result(error)


class Wills:
    """Used on the event loop."""

    def __init__(
        self,
        exchange: Exchange,
        catalog: WillCatalog,
        clock: Clock,
        grace_s: float = WILL_GRACE_S,
    ) -> None:
        self._exchange = exchange
        self._catalog = catalog
        self._grace_s = grace_s
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[tuple[str, str], Waiting] = {}  # by client id and owner
        self._held: Owners[int] = Owners()  # of all wills in the catalog, by their ids
        self._heap: list[Waiting] = []  # those, the retried, and some that are over
        self._stale = 0  # how many of them are
        self._timer: asyncio.TimerHandle | None = None
        self._due: deque[Waiting] = deque()
        self._attempts: dict[str, asyncio.Future[None]] = {}  # by client id: the newest in `_due`
        self._publishing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self.is_draining = False  # connections end because the node sends its clients away

    # Start and end

    async def open(self) -> None:
        """Take over what an earlier broker left; the store has followed the logs before.

        A node does the same again when it has recovered another one.
        """
        now_us, now_s = self._clock.steady_us(), self._clock.monotonic_s()
        for held in await self._catalog.held():
            if held.will_id in self._held:
                continue
            self._held[held.will_id] = held.owner
            if held.due_at == NOT_DUE:
                wait_s = float(min(held.delay_s, held.session_expiry_s))
            else:
                wait_s = min((held.due_at - now_us) / 1_000_000, held.delay_s)
            due_s = now_s + max(wait_s, self._grace_s)
            is_forgiving = held.due_at == NOT_DUE
            self._wait(
                Waiting(held.will_id, held.client_id, held.owner, due_s, is_forgiving=is_forgiving)
            )

    def stop(self) -> None:
        """Connections end because the broker does: their wills are left to its next start."""
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """Finish what was begun."""
        self.stop()
        if self._publishing is not None:
            await self._publishing
        while self._tasks:
            await asyncio.gather(*self._tasks)

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way to the disk."""
        return not self._tasks and self._publishing is None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(self._tolerate(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tolerate(self, work: Coroutine[Any, Any, None]) -> None:
        """What the catalog cannot note now costs at most a will too many after a crash."""
        try:
            await work
        except PenstockError as trouble:
            self._note_trouble(trouble)

    def _note_trouble(self, trouble: PenstockError) -> None:
        self._exchange.engine.upkeep.note_trouble(WILLS, f"wills: {trouble}")

    # Clients

    def concerns(self, client_id: str, owner: str) -> bool:
        """Whether `begin` has something to do for a client without a will."""
        return client_id in self._attempts or (client_id, owner) in self._waiting

    async def begin(
        self, session: Session, owner: str, will: Will | None, *, is_clean: bool
    ) -> None:
        """A client logs in: settle its last will, store its new one; durable on return.

        Back in time, its last will is called off; a clean start ends the session that it belonged
        to, and so publishes it [MQTT-3.1.3-9]. What is being published is waited for: nothing the
        client says from now on comes before it.
        """
        client_id = session.client_id
        if self._exchange.engine.shared.node is not None:
            await self._settle_elsewhere(client_id, owner, is_clean=is_clean)
        last = self._waiting.pop((client_id, owner), None)
        if last is not None:
            self._call_off(last)
            if is_clean and not last.is_forgiving:
                self._publish_now(last)
                last = None
        while attempt := self._attempts.get(client_id):
            await asyncio.shield(attempt)
        if last is None and will is None:
            return
        replaced = NO_WILL if last is None else last.will_id
        assert session.outbox is not None
        login = self._exchange.engine.access.login_of(session.outbox.principal)
        self._held.pop(replaced)  # the new one may have its place in the quota
        try:
            with self._making(owner) if will is not None else nullcontext():
                session.will_id = await self._catalog.hold(
                    *(client_id, owner, session.expiry_s),
                    will=will,
                    replaced=replaced,
                    login=login,
                    limits=self._limits,
                )
                if will is not None:
                    self._held[session.will_id] = owner
        except BaseException:
            if last is not None:
                self._held[replaced] = owner
                self._wait(_anew(last, last.due_s))
            raise
        session.will_delay_s = 0 if will is None else will.delay_s

    async def _settle_elsewhere(self, client_id: str, owner: str, *, is_clean: bool) -> None:
        """The same for a last will that another node holds."""
        found = await self._catalog.settle_elsewhere(client_id, owner, is_clean=is_clean)
        now_s = self._clock.monotonic_s()
        for held in found:
            self._held[held.will_id] = owner
            waiting = Waiting(held.will_id, client_id, owner, now_s, is_forgiving=False)
            self._publish_now(waiting)

    @property
    def _limits(self) -> tuple[Limits, Limits] | None:
        """As a node: what the catalog has to see to, which knows the wills of all nodes."""
        engine = self._exchange.engine
        return None if engine.shared.node is None else engine.quotas.both

    def _making(self, owner: str) -> AbstractContextManager[None]:
        """Around keeping a will of this user; QuotaExceeded if there may not be another one."""
        held = self._held
        quotas = self._exchange.engine.quotas
        if self._limits is not None:
            return quotas.counting()
        return quotas.making_own(WILLS_QUOTA, len(held), owner, held.count_of(owner))

    def withdraw(self, session: Session, then: Callable[[], None]) -> None:
        """The client says goodbye: its will is never published; `then` once that is durable."""
        will_id, session.will_id = session.will_id, NO_WILL
        if will_id:
            self._spawn(self._withdraw(will_id, then))
        else:
            then()

    async def _withdraw(self, will_id: int, then: Callable[[], None]) -> None:
        try:
            await self._catalog.delete(will_id)
        finally:
            self._held.pop(will_id)
            then()

    def end(self, session: Session, owner: str) -> None:
        """The connection is gone; its will is due after its delay, or with the session."""
        will_id, session.will_id = session.will_id, NO_WILL
        if not will_id or self._is_stopping:
            return
        wait_s = min(session.will_delay_s, session.expiry_s)
        if self.is_draining:
            due_s = self._clock.monotonic_s() + max(wait_s, self._grace_s)
            self._wait(Waiting(will_id, session.client_id, owner, due_s, is_forgiving=True))
            return
        due_s = self._clock.monotonic_s() + wait_s
        waiting = Waiting(will_id, session.client_id, owner, due_s, is_forgiving=False)
        if wait_s == 0:
            self._publish_now(waiting)
            return
        self._wait(waiting)
        due_at = self._clock.steady_us() + wait_s * 1_000_000
        self._spawn(self._catalog.set_due(will_id, due_at))

    # Waiting

    def _wait(self, waiting: Waiting) -> None:
        self._waiting[waiting.client_id, waiting.owner] = waiting
        self._push(waiting)

    def _push(self, waiting: Waiting) -> None:
        heapq.heappush(self._heap, waiting)
        if self._heap[0] is waiting:
            self._set_timer()

    def _call_off(self, waiting: Waiting) -> None:
        """It stays in the heap until its turn, unless too many do."""
        waiting.is_over = True
        self._stale += 1
        if self._stale > STALE_MAX and self._stale * 2 > len(self._heap):
            self._heap = [one for one in self._heap if not one.is_over]
            heapq.heapify(self._heap)
            self._stale = 0

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap and not self._is_stopping:
            wait_s = max(self._heap[0].due_s - self._clock.monotonic_s(), 0.0)
            self._timer = self._loop.call_later(min(wait_s, TIMER_S_MAX), self.look)

    def look(self) -> None:
        """Publish what is due; the timer calls it."""
        now_s = self._clock.monotonic_s()
        while self._heap and (self._heap[0].is_over or self._heap[0].due_s <= now_s):
            waiting = heapq.heappop(self._heap)
            if waiting.is_over:
                self._stale -= 1
                continue
            key = (waiting.client_id, waiting.owner)
            if self._waiting.get(key) is waiting:
                del self._waiting[key]
            self._publish_now(waiting)
        self._set_timer()

    # Publishing

    def _publish_now(self, waiting: Waiting) -> None:
        waiting.is_over = True
        waiting.attempted = self._attempts[waiting.client_id] = self._loop.create_future()
        self._due.append(waiting)
        if self._publishing is None:
            self._publishing = self._loop.create_task(self._publish_due())

    async def _publish_due(self) -> None:
        """One part after another, so that a thousand clients lost at once cost bounded memory."""
        try:
            while self._due:
                part = [self._due.popleft() for _ in range(min(len(self._due), SENT_AT_ONCE))]
                refused = await self._publish_part([waiting.will_id for waiting in part])
                for waiting in part:
                    self._answer(waiting, is_refused=waiting.will_id in refused)
        finally:
            self._publishing = None

    def _answer(self, waiting: Waiting, *, is_refused: bool) -> None:
        """Publishing was tried: wake everyone who waits for it; rejected wills are tried again."""
        attempted = waiting.attempted
        assert attempted is not None
        if self._attempts.get(waiting.client_id) is attempted:
            del self._attempts[waiting.client_id]
        attempted.set_result(None)
        if not is_refused:
            self._held.pop(waiting.will_id)
        else:
            self._push(_anew(waiting, self._clock.monotonic_s() + RETRY_S))

    async def _publish_part(self, will_ids: list[int]) -> set[int]:
        """Publish some; the ids of those that have to be tried again."""
        try:
            stored = await self._catalog.load(will_ids)
            for one in stored:
                await self._make_topic(one)
        except PenstockError as trouble:
            self._note_trouble(trouble)
            return set(will_ids)
        self._exchange.engine.upkeep.end_trouble(WILLS)
        errors = await asyncio.gather(*[self._publish(one) for one in stored])
        return {one.will_id for one, error in zip(stored, errors, strict=True) if error is not None}

    async def _make_topic(self, stored: StoredWill) -> None:
        """Create the topic of a will's name, where publishing does that."""
        exchange = self._exchange
        try:
            exchange.router.find(stored.will.name, self._owner(stored))
        except TopicWanted as wanted:
            await exchange.engine.create_wanted(wanted.topic, stored.owner)

    def _owner(self, stored: StoredWill) -> Principal:
        """Who left it: what that login may publish counts when it is published."""
        engine = self._exchange.engine
        owner = engine.access.with_login(engine.tenant, stored.owner, stored.login)
        return owner.for_client(stored.client_id)

    def _publish(self, stored: StoredWill) -> asyncio.Future[Exception | None]:
        """Append the message with its mark; why it has to be tried again, if it has to."""
        exchange, will = self._exchange, stored.will
        done: asyncio.Future[Exception | None] = self._loop.create_future()
        flags = record_flags(will.qos, will.retain)
        run = Run(will.name, will.payload, [0], [len(will.payload)], flags)
        run.publisher = stored.client_id
        run.headers = will.headers
        if will.expiry_s is not None:
            run.until_us = self._clock.steady_us() + will.expiry_s * 1_000_000
        try:
            route = exchange.router.find(will.name, self._owner(stored))
        except TopicWanted as wanted:  # its topic was deleted just now
            done.set_result(wanted)
            return done
        refused = exchange.engine.upkeep.refused(route.topic)
        if refused is not None:
            done.set_result(refused)
            return done
        waiter = Firing(exchange, stored.will_id, done)
        marks = [will_mark(stored.will_id)]
        exchange.publisher.publish(route, run, waiter, marks, stored.owner)
        return done


def _anew(waiting: Waiting, due_s: float) -> Waiting:
    """The same will, to be waited for again."""
    return Waiting(
        waiting.will_id,
        waiting.client_id,
        waiting.owner,
        due_s,
        is_forgiving=waiting.is_forgiving,
    )
