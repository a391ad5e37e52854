"""Wills without sockets: when is one published, when not, and how often?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.app.wiring import open_memory
from penstock.broker.engine import Engine
from penstock.broker.exchange import Exchange
from penstock.broker.session import wills as module
from penstock.broker.session.session import NEVER_EXPIRES, Session
from penstock.broker.session.store import SessionStore
from penstock.broker.session.wills import RETRY_S, STALE_MAX, Wills
from penstock.broker.settings import BrokerSettings
from penstock.broker.upkeep.upkeep import WILLS
from penstock.core.access import PUBLISH, Principal
from penstock.core.naming.placement import DEFAULT_TOPIC
from penstock.log.interface import LogSettings
from penstock.model.clock import ManualClock
from penstock.model.errors import UnavailableError
from penstock.model.limits import WILL_GRACE_S
from penstock.model.will import Will
from tests.broker.exchange_world import Client
from tests.waiting import WAIT_S


class Life:
    """One life of a broker on an engine that outlives it: a second one is what comes after kill."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.forbidden: set[str] = set()
        self.store = SessionStore(engine, engine.session_catalog)
        self.exchange = Exchange(engine, self.store, self._may)
        self.wills = Wills(self.exchange, engine.will_catalog, clock)

    def _may(self, principal: Principal, action: str, name: str, topic: str) -> bool:
        return action != PUBLISH or name not in self.forbidden

    async def open(self) -> None:
        await self.store.open()
        await self.wills.open()

    async def next_life(self) -> Life:
        """Without a word, as kill -9 ends it."""
        self.wills.stop()
        assert self.store._timer is not None
        self.store._timer.cancel()
        life = Life(self.engine, self.clock)
        await life.open()
        return life

    async def connect(
        self,
        client_id: str,
        will: Will | None = None,
        *,
        is_clean: bool = True,
        expiry_s: int = 0,
        owner: str = "",
    ) -> Session:
        session = Session(client_id, Client(client_id), 10)
        session.expiry_s = expiry_s
        await self.wills.begin(session, owner, will, is_clean=is_clean)
        return session

    async def settle(self) -> None:
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while not self.wills.is_idle:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0)

    async def lose(self, session: Session, owner: str = "") -> None:
        self.wills.end(session, owner)
        await self.settle()

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.wills.look()
        await self.settle()

    async def published(self) -> list[bytes]:
        log = self.engine.topics.get(DEFAULT_TOPIC).log
        return [
            record.payload
            async for batch in log.batches_since(0)
            for record in batch.records("", 0, log.bounds().end)
        ]

    async def rows(self) -> int:
        await self.store.checkpoints.save()
        return len(await self.engine.will_catalog.held())


@pytest.fixture
async def life() -> AsyncIterator[Life]:
    opened = await open_memory(BrokerSettings())
    await opened.engine.topics.create(DEFAULT_TOPIC, LogSettings(), exist_ok=True)
    begun = Life(opened.engine, ManualClock())
    await begun.open()
    yield begun
    await begun.wills.close()
    await begun.store.close()
    await opened.close(True)


def later(delay_s: int, payload: bytes = b"gone") -> Will:
    return Will("a", payload, 1, delay_s=delay_s)


async def test_a_will_without_delay_is_published_as_soon_as_its_client_is_lost(life: Life) -> None:
    session = await life.connect("c", Will("a", b"gone"))
    assert await life.published() == []
    await life.lose(session)
    assert await life.published() == [b"gone"]
    assert await life.rows() == 0


async def test_a_will_that_was_withdrawn_is_never_published(life: Life) -> None:
    session = await life.connect("c", Will("a", b"gone"))
    life.wills.withdraw(session, lambda: None)
    await life.lose(session)
    assert await life.published() == []
    assert await life.rows() == 0


async def test_a_delayed_will_waits_for_its_delay(life: Life) -> None:
    await life.lose(await life.connect("c", later(60), expiry_s=NEVER_EXPIRES))
    await life.pass_time(59.9)
    assert await life.published() == []
    await life.pass_time(0.2)
    assert await life.published() == [b"gone"]
    await life.pass_time(1000)
    assert await life.published() == [b"gone"]


async def test_a_session_that_ends_before_the_delay_publishes_the_will(life: Life) -> None:
    await life.lose(await life.connect("short", later(60, b"short"), expiry_s=10))
    await life.lose(await life.connect("none", later(60, b"none"), expiry_s=0))
    assert await life.published() == [b"none"]
    await life.pass_time(10)
    assert await life.published() == [b"none", b"short"]


async def test_a_client_back_in_time_calls_its_will_off(life: Life) -> None:
    await life.lose(await life.connect("c", later(60), expiry_s=100))
    await life.pass_time(59)
    await life.connect("c", is_clean=False, expiry_s=100)
    await life.pass_time(1000)
    assert await life.published() == []
    assert await life.rows() == 0


async def test_a_clean_start_ends_the_session_and_publishes_its_will_at_once(life: Life) -> None:
    await life.lose(await life.connect("c", later(60), expiry_s=100))
    await life.connect("c", later(60, b"new"), expiry_s=100)
    assert await life.published() == [b"gone"]
    await life.pass_time(1000)
    assert await life.published() == [b"gone"]
    assert await life.rows() == 1  # of the one that is connected


async def test_nobody_else_calls_a_will_off_by_using_the_client_id(life: Life) -> None:
    session = await life.connect("c", later(60), expiry_s=100, owner="alice")
    await life.lose(session, "alice")
    await life.connect("c", is_clean=False, owner="mallory")
    await life.pass_time(60)
    assert await life.published() == [b"gone"]


async def test_what_a_client_says_when_it_is_back_comes_after_its_will(life: Life) -> None:
    """A retained `offline` that overtakes `online` would be a lie for ever."""
    session = await life.connect("c", Will("a", b"offline", 1, True))
    life.wills.end(session, "")  # being published, not there yet
    assert life.wills.concerns("c", "")
    await life.connect("c")
    assert await life.published() == [b"offline"]
    assert not life.wills.concerns("c", "")


async def test_a_will_in_the_log_is_not_published_again_by_the_next_life(life: Life) -> None:
    """Killed between the append and the end of the row: does the mark tell?"""
    await life.lose(await life.connect("c", Will("a", b"gone")))
    assert len(await life.engine.will_catalog.held()) == 1  # no checkpoint came in between
    life = await life.next_life()
    assert await life.rows() == 0
    await life.pass_time(1000)
    assert await life.published() == [b"gone"]


async def test_no_checkpoint_passes_a_will_and_leaves_its_row(life: Life) -> None:
    """One as soon as the message is visible, and then the end: is it recognised all the same?"""
    session = await life.connect("c", Will("a", b"gone", 1))
    life.wills.end(session, "")
    await life.engine.topics.get(DEFAULT_TOPIC).log.wait_past(0)
    await life.store.checkpoints.save()
    life = await life.next_life()
    await life.pass_time(1000)
    assert await life.published() == [b"gone"]


async def test_the_next_life_publishes_what_was_left_after_a_grace(life: Life) -> None:
    await life.connect("connected", later(0, b"connected"))
    await life.connect("patient", later(100, b"patient"), expiry_s=NEVER_EXPIRES)
    gone = await life.connect("gone", later(100, b"gone"), expiry_s=NEVER_EXPIRES)
    await life.lose(gone)
    life.clock.advance(50)
    life = await life.next_life()
    await life.pass_time(WILL_GRACE_S - 1)
    assert await life.published() == []
    await life.pass_time(1)
    assert await life.published() == [b"connected"]
    await life.pass_time(20)  # 100 s after it was lost
    assert await life.published() == [b"connected", b"gone"]
    await life.pass_time(50)  # 100 s after the start
    assert await life.published() == [b"connected", b"gone", b"patient"]
    assert await life.rows() == 0


@pytest.mark.parametrize("is_clean", [True, False])
async def test_any_return_within_the_grace_calls_a_will_off(is_clean: bool, life: Life) -> None:
    await life.connect("c", Will("a", b"gone"))
    life = await life.next_life()
    await life.pass_time(WILL_GRACE_S - 1)
    assert life.wills.concerns("c", "")
    await life.connect("c", is_clean=is_clean)
    await life.pass_time(1000)
    assert await life.published() == []
    assert await life.rows() == 0


async def test_a_wall_clock_that_steps_back_does_not_keep_a_will_for_years(life: Life) -> None:
    await life.lose(await life.connect("c", later(60), expiry_s=100))
    life.clock.set_wall(0)
    life = await life.next_life()
    await life.pass_time(60)
    assert await life.published() == [b"gone"]


async def test_a_will_that_the_log_refuses_is_tried_again_until_it_is_stored(life: Life) -> None:
    session = await life.connect("c", Will("a", b"gone"))
    life.engine.upkeep.refusal = "the disk is full"
    await life.lose(session)
    await life.pass_time(RETRY_S)
    assert await life.published() == []
    assert await life.rows() == 1
    life.engine.upkeep.refusal = ""
    await life.connect("c", is_clean=False)  # it is due: coming back does not change that
    await life.pass_time(RETRY_S)
    assert await life.published() == [b"gone"]
    assert await life.rows() == 0
    assert not life.engine.metrics.dropped


async def test_a_will_that_cannot_be_read_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, life: Life
) -> None:
    async def refuse(will_ids: list[int]) -> None:
        raise UnavailableError("the catalog is locked")

    session = await life.connect("c", Will("a", b"gone"))
    with monkeypatch.context() as patch:
        patch.setattr(life.engine.will_catalog, "load", refuse)
        await life.lose(session)
    assert "locked" in life.engine.upkeep.troubles[WILLS]
    await life.pass_time(RETRY_S)
    assert await life.published() == [b"gone"]
    assert WILLS not in life.engine.upkeep.troubles


async def test_a_will_that_may_no_longer_be_published_is_dropped_and_counted(life: Life) -> None:
    session = await life.connect("c", Will("a", b"gone"))
    life.forbidden.add("a")
    await life.lose(session)
    assert await life.published() == []
    assert await life.rows() == 0
    assert life.engine.metrics.dropped["not_authorized"] == 1


async def test_a_checkpoint_that_fails_leaves_the_row_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch, life: Life
) -> None:
    async def refuse(checkpoint: object) -> None:
        raise UnavailableError("the catalog is locked")

    await life.lose(await life.connect("c", Will("a", b"gone")))
    with monkeypatch.context() as patch:
        patch.setattr(life.engine.session_catalog, "save", refuse)
        with pytest.raises(UnavailableError):
            await life.store.checkpoints.save()
    assert await life.rows() == 0


async def test_a_client_that_cannot_be_let_in_leaves_its_last_will_waiting(
    monkeypatch: pytest.MonkeyPatch, life: Life
) -> None:
    async def refuse(*row: object, **named: object) -> int:
        raise UnavailableError("the catalog is locked")

    await life.lose(await life.connect("c", later(60), expiry_s=100))
    with monkeypatch.context() as patch:
        patch.setattr(life.engine.will_catalog, "hold", refuse)
        with pytest.raises(UnavailableError):
            await life.connect("c", is_clean=False, expiry_s=100)
    await life.pass_time(60)
    assert await life.published() == [b"gone"]


async def test_the_message_carries_what_the_client_asked_for(life: Life) -> None:
    will = Will("a/b", b"gone", 2, True, (("k", "v"), ("k", "w")), 5)
    await life.lose(await life.connect("c", will))
    log = life.engine.topics.get(DEFAULT_TOPIC).log
    (batch,) = [batch async for batch in log.batches_since(0)]
    (record,) = batch.records("", 0, 1)
    assert (record.name, record.payload, record.qos, record.retain) == ("a/b", b"gone", 2, True)
    assert record.headers == (("k", "v"), ("k", "w"))
    assert record.publisher == "c"
    assert record.expires_at == life.clock.now_us() + 5_000_000  # from when it is published


async def test_thousands_lost_at_once_are_published_in_parts(
    monkeypatch: pytest.MonkeyPatch, life: Life
) -> None:
    sizes = []
    load = life.engine.will_catalog.load

    async def note(will_ids: list[int]) -> object:
        sizes.append(len(will_ids))
        return await load(will_ids)

    monkeypatch.setattr(life.engine.will_catalog, "load", note)
    count = 5 * module.SENT_AT_ONCE
    sessions = [
        await life.connect(str(number), Will("a", b"%d" % number)) for number in range(count)
    ]
    for session in sessions:
        life.wills.end(session, "")
    await life.settle()
    assert sorted(await life.published()) == sorted(b"%d" % number for number in range(count))
    assert max(sizes) == module.SENT_AT_ONCE
    assert await life.rows() == 0


async def test_what_waits_hangs_on_one_timer_and_what_was_called_off_is_let_go(life: Life) -> None:
    loop = asyncio.get_running_loop()
    timers = len(loop._scheduled)  # type: ignore[attr-defined]
    for number in range(1000):
        session = await life.connect(str(number), later(1000 + number), expiry_s=NEVER_EXPIRES)
        life.wills.end(session, "")
    await life.settle()
    assert len(life.wills._heap) == 1000
    assert len(loop._scheduled) <= timers + 1  # type: ignore[attr-defined]
    for number in range(1000):
        await life.connect(str(number), is_clean=False)
    assert len(life.wills._heap) <= STALE_MAX + 1
    assert not life.wills._waiting
    await life.pass_time(10_000)
    assert await life.published() == []


async def test_a_delay_of_a_century_does_not_upset_the_timer(life: Life) -> None:
    session = await life.connect("c", later(NEVER_EXPIRES), expiry_s=NEVER_EXPIRES)
    await life.lose(session)
    await life.pass_time(1_000_000)
    assert await life.published() == []
    assert await life.rows() == 1


async def test_a_broker_that_stops_leaves_wills_to_its_next_start(life: Life) -> None:
    session = await life.connect("c", Will("a", b"gone"))
    life.wills.stop()
    await life.lose(session)
    assert await life.published() == []
    life = await life.next_life()
    await life.pass_time(WILL_GRACE_S)
    assert await life.published() == [b"gone"]
