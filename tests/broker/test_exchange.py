"""Moments in the life of a session that random traffic meets too seldom."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.session.resume import restore
from penstock.broker.session.session import NEVER_EXPIRES, Session
from penstock.catalog.session.stored_sessions import OutstandingRow, StoredSession
from penstock.core.access import RECEIVE, Principal
from penstock.core.delivery.run import Run, record_flags, run_of
from penstock.core.delivery.tags import make_tag, offset_of, topic_id_of
from penstock.core.naming.placement import DEFAULT_TOPIC
from penstock.log.format.batch import Batch
from penstock.log.interface import LogSettings
from penstock.log.memory import MemoryLog
from penstock.model.errors import UnavailableError
from tests.appends import Told, append
from tests.broker.exchange_world import ExchangeWorld, after_a_crash, kept
from tests.broker.model_broker import Wanted


async def test_position_of_a_session_that_lags_for_lack_of_buffer_is_saved(
    world: ExchangeWorld,
) -> None:
    """Nothing is out, the buffer is full of QoS 0: is a QoS 1 message safe from a crash?"""
    await kept(world, "reader")
    await kept(world, "writer")
    await world.subscribe("reader", "a", Wanted(1))
    await world.store.checkpoints.save()
    world.clients["reader"].has_room = False
    world.publish("writer", "a", [b"x"], 1, False)
    await world.settle()
    await world.store.checkpoints.save()
    stored = await after_a_crash(world, "reader")
    assert [offset for _, offset in stored.positions.values()] == [0]


async def test_what_was_out_is_sent_again_in_its_order_whatever_ids_it_had(
    world: ExchangeWorld,
) -> None:
    """A packet id used again for a newer message: does that come at its own place?"""
    session = await kept(world, "reader")
    rows = [
        OutstandingRow(1, 5, 1, 2, True),
        OutstandingRow(1, 6, 2, 2, False),
        OutstandingRow(1, 9, 1, 2, False),
        OutstandingRow(2, 3, 2, 2, True),
        OutstandingRow(2, 4, 7, 2, True),
    ]
    stored = StoredSession("reader", 1, NEVER_EXPIRES, [], {}, rows, [])
    await restore(world.exchange, session, stored)
    out = [(i, topic_id_of(t), offset_of(t)) for i, t in session.window.items()]
    assert out == [(2, 1, 6), (1, 1, 9), (7, 2, 4)]
    assert session.released == {7}
    assert all(session.is_sent(row.topic_id, row.offset) for row in rows)


async def test_messages_that_are_sent_again_are_read_together(
    world: ExchangeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full window of neighbours: one read of the log is enough for all of them."""
    await kept(world, "reader")
    await kept(world, "writer")
    await world.subscribe("reader", "a", Wanted(2))
    payloads = [b"%d" % number for number in range(100)]
    world.publish("writer", "a", payloads, 2, False)
    await world.settle()
    client = world.clients["reader"]
    assert len(client.inbox) == 100
    read, offsets = MemoryLog.read, []

    async def count(log: MemoryLog, offset: int) -> list[Batch]:
        offsets.append(offset)
        return await read(log, offset)

    monkeypatch.setattr(MemoryLog, "read", count)
    await kept(world, "reader")
    await world.settle()
    assert [sent.message.payload for sent in client.inbox if sent.message and sent.dup] == payloads
    assert offsets == [0]


async def test_id_of_an_acknowledged_message_used_again_for_qos_2_stands_for_the_newer_one(
    world: ExchangeWorld,
) -> None:
    """Acknowledgements of QoS 1 are not stored one by one: is the QoS 2 message sent again?"""
    session = await kept(world, "reader")
    rows = [OutstandingRow(1, 5, 3, 1, False), OutstandingRow(1, 8, 3, 2, False)]
    stored = StoredSession("reader", 1, NEVER_EXPIRES, [], {}, rows, [])
    await restore(world.exchange, session, stored)
    assert [(i, offset_of(t)) for i, t in session.window.items()] == [(3, 8)]
    assert session.window.take(0, 1) == [4]  # what was out is not soon confused with it


async def test_topic_born_while_a_client_was_away_is_read_from_0_also_after_a_crash(
    world: ExchangeWorld,
) -> None:
    await kept(world, "reader")
    await kept(world, "writer")
    await world.subscribe("reader", "#", Wanted(1))
    world.disconnect("reader")
    await world.settle_catalog()
    await world.engine.topics.create("new", LogSettings(), exist_ok=False)
    world.publish("writer", "new/x", [b"1", b"2"], 1, False)
    await world.settle()
    await world.store.checkpoints.save()
    await kept(world, "reader", window=1)
    stored = await after_a_crash(world, "reader")  # before the next checkpoint
    topic = world.engine.topics.get("new")
    assert stored.positions[topic.id] == (0, 0)


def publish_twice(
    world: ExchangeWorld, session: Session, payload: bytes, packet_id: int
) -> list[object]:
    """A QoS 2 message; what the publisher is told once that is known."""
    run = Run("a", payload, [0], [len(payload)], 2)
    told: list[object] = []
    route = world.exchange.router.find("a")
    world.exchange.publisher.publish_once(route, run, session, [packet_id], Told(told.append))
    return told


async def stored_payloads(world: ExchangeWorld) -> list[bytes]:
    topic = world.engine.topics.get(DEFAULT_TOPIC)
    batches = await topic.log.read(0)
    return [record.payload for batch in batches for record in batch.records("", 0, 1 << 40)]


async def test_packet_ids_of_a_session_that_was_forgotten_are_free(world: ExchangeWorld) -> None:
    """Opened at QoS 2, then a clean start within the same checkpoint: is the id new again?"""
    session = await kept(world, "writer")
    publish_twice(world, session, b"old", 7)
    await world.settle()
    world.disconnect("writer")
    await world.connect("writer", clean=True, is_kept=True, window=1)
    session = world.clients["writer"].session  # type: ignore[assignment]
    assert publish_twice(world, session, b"new", 7) == []
    await world.settle()
    assert await stored_payloads(world) == [b"old", b"new"]
    await world.store.checkpoints.save()
    stored = await after_a_crash(world, "writer")
    assert stored.opened == [(1, 7)]


async def test_qos2_message_still_on_its_way_at_a_reconnect_is_stored_once(
    world: ExchangeWorld,
) -> None:
    session = await kept(world, "writer")
    publish_twice(world, session, b"once", 7)  # not committed before the next tick
    session = await kept(world, "writer")
    assert session.opened == {7: 1}
    assert publish_twice(world, session, b"once", 7) == [None]
    await world.settle()
    assert await stored_payloads(world) == [b"once"]


async def test_qos2_message_that_was_refused_is_taken_after_a_reconnect(
    world: ExchangeWorld,
) -> None:
    """Never say PUBREC to a repeat of what was not stored."""
    session = await kept(world, "writer")
    log = world.engine.topics.get(DEFAULT_TOPIC).log
    append = log.append
    waiting = []
    log.append = lambda *a: waiting.append(a[1])  # type: ignore[method-assign]
    publish_twice(world, session, b"once", 7)
    world.disconnect("writer")
    await world.settle_catalog()
    stored = await after_a_crash(world, "writer")
    assert stored.opened == []  # were the broker to end now
    coming = asyncio.ensure_future(kept(world, "writer"))
    await asyncio.sleep(0.01)
    assert not coming.done(), "the session is not known before the message is"
    waiting[0].refused(UnavailableError("full"))
    log.append = append  # type: ignore[method-assign]
    session = await coming
    assert session.opened == {}
    assert publish_twice(world, session, b"once", 7) == []
    await world.settle()
    assert await stored_payloads(world) == [b"once"]


async def test_subscription_counts_only_for_what_came_after_it(world: ExchangeWorld) -> None:
    """A lagging session subscribes anew: is what came before handed on as it was then?"""
    await kept(world, "reader", window=1)
    await kept(world, "writer")
    await world.subscribe("reader", "a", Wanted(1, identifier=1))
    await world.subscribe("reader", "+", Wanted(0, identifier=2))
    await world.settle()
    world.publish("writer", "a", [b"1", b"2"], 2, False)  # the second waits for the first
    world.publish("writer", "b", [b"3"], 2, False)  # at QoS 0, at once
    await world.settle()
    await world.subscribe("reader", "#", Wanted(2, identifier=3))
    world.publish("writer", "a", [b"4"], 2, False)
    world.publish("writer", "b", [b"5"], 2, False)
    reader = world.clients["reader"]
    await world.drain("reader", lambda: len(reader.received) >= 5)
    seen = [(one.payload, one.qos, one.identifiers) for one in reader.received]
    assert seen == [
        (b"3", 0, (2,)),
        (b"1", 1, (1, 2)),
        (b"2", 1, (1, 2)),
        (b"4", 2, (1, 2, 3)),
        (b"5", 2, (2, 3)),
    ]


async def test_retained_message_under_a_clock_that_went_back_still_comes(
    world: ExchangeWorld,
) -> None:
    """Stamps never fall, so after a correction they lie ahead of the clock for a while."""
    await kept(world, "writer")
    world.publish("writer", "a", [b"x"], 1, True)
    await world.settle()
    retained = world.store.retained
    held: list[dict[str, Any]] = [retained._messages, retained._unsaved, retained._cache]
    for rows in held:
        if "a" in rows:
            rows["a"] = replace(rows["a"], timestamp=rows["a"].timestamp + 3_600_000_000)
    await kept(world, "reader")
    await world.subscribe("reader", "a", Wanted(1))
    reader = world.clients["reader"]
    await world.drain("reader", lambda: len(reader.received) == 1)
    assert reader.received[0].retain


async def test_retained_qos0_message_on_its_way_reaches_who_subscribes_meanwhile(
    world: ExchangeWorld,
) -> None:
    """Published before the SUBSCRIBE, committed after it: is the newest value known?"""
    await kept(world, "writer")
    await kept(world, "reader")
    world.publish("writer", "a", [b"old"], 1, True)
    await world.settle()
    world.publish("writer", "a", [b"new"], 0, True)
    await world.subscribe("reader", "a", Wanted(0))
    await world.settle()
    reader = world.clients["reader"]
    assert [one.payload for one in reader.received][-1:] == [b"new"]


async def test_name_replaced_during_a_long_scan_comes_once(world: ExchangeWorld) -> None:
    """The window holds the scan up, and meanwhile a name gets a newer retained message."""
    await kept(world, "writer")
    names = [f"a/{number}" for number in range(6)]
    for name in names:
        world.publish("writer", name, [b"old"], 1, True)
    await world.settle()
    await kept(world, "reader", window=1)
    await world.subscribe("reader", "a/#", Wanted(1))
    await world.settle()
    for name in names:
        world.publish("writer", name, [b"new"], 1, True)
    await world.settle()
    reader = world.clients["reader"]
    await world.drain("reader", lambda: len(reader.received) >= 7)
    seen = [(one.payload, one.retain) for one in reader.received]
    assert sorted(seen) == [(b"new", False)] * 6 + [(b"old", True)]


async def test_retained_message_is_only_for_those_who_may_receive_it(world: ExchangeWorld) -> None:
    await kept(world, "writer")
    await kept(world, "reader")
    world.publish("writer", "open/a", [b"1"], 1, True)
    world.publish("writer", "secret/a", [b"2"], 1, True)
    await world.settle()

    def authorise(principal: Principal, action: str, name: str, topic: str) -> bool:
        return not (action == RECEIVE and name.startswith("secret"))

    world.exchange.retained_delivery._authorise = authorise
    await world.subscribe("reader", "#", Wanted(1))
    reader = world.clients["reader"]
    await world.drain("reader", lambda: len(reader.received) >= 1)
    assert [one.name for one in reader.received] == ["open/a"]


async def test_retained_messages_go_with_their_topic(world: ExchangeWorld) -> None:
    """A topic is deleted while it holds retained messages: do they still come?"""
    topic = await world.engine.topics.create("gone", LogSettings(), exist_ok=False)
    run = Run("gone/1", b"x", [0], [1], record_flags(1, True))
    done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    world.exchange.publisher.publish(
        world.exchange.router.find("gone/1"), run, Told(done.set_result)
    )
    assert await done is None
    assert world.store.retained.get("gone/1") is not None
    await world.engine.delete_topic(topic.declared)
    assert world.store.retained.get("gone/1") is None


async def test_a_message_of_qos_0_that_a_log_refuses_while_it_waits_is_counted(
    world: ExchangeWorld,
) -> None:
    topic = world.engine.topics.get(DEFAULT_TOPIC)
    append(topic.log, run_of("a", [b"before"]))  # waits for its commit, so the next waits, too
    run = Run("a", b"xy", [0, 1], [1, 1], 0)
    world.exchange.publisher.publish(world.exchange.router.find("a"), run, None)
    topic.log.refuse_waiting(UnavailableError("full"))  # type: ignore[attr-defined]
    assert world.engine.metrics.dropped["log_unavailable"] == 2


async def test_a_message_of_qos_0_that_went_ahead_and_could_not_be_stored_is_counted(
    world: ExchangeWorld,
) -> None:
    topic = world.engine.topics.get(DEFAULT_TOPIC)
    run = Run("a", b"xy", [0, 1], [1, 1], 0)
    world.exchange.publisher.publish(world.exchange.router.find("a"), run, None)
    assert run.is_forwarded
    topic.log.refuse_waiting(UnavailableError("full"))  # type: ignore[attr-defined]
    assert world.engine.metrics.dropped["log_unavailable"] == 2


async def test_what_is_done_is_not_sent_again_although_the_position_lies_before_it(
    world: ExchangeWorld,
) -> None:
    """Back after a crash, released, killed again before it caught up: does it come twice?"""
    session = await kept(world, "reader")
    topic = world.engine.topics.get(DEFAULT_TOPIC)
    done = make_tag(topic.id, 3)
    session.resent |= {done}
    session.lags[topic.id] = 0
    world.store.touch(session)
    await world.store.checkpoints.save()
    stored = await after_a_crash(world, "reader")
    assert [(row.offset, row.packet_id) for row in stored.outstanding] == [(3, 0)]
    again = Session("reader", session.outbox, 10)
    await restore(world.exchange, again, stored)
    assert again.is_sent(topic.id, 3) and again.window.items() == []
    session.lags[topic.id] = 4  # catching up has passed it: nobody needs to know any more
    await world.store.checkpoints.save()
    assert (await after_a_crash(world, "reader")).outstanding == []
