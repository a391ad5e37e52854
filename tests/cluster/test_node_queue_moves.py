"""Is the queue complete when its nodes are killed, drained, frozen, or joined by others?"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.queue.readers import SLOTS
from tests.cluster.node_queues import Queues
from tests.cluster.node_world import NodeWorld
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until


@pytest.fixture
def alone(kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path) -> Iterator[Queues]:
    """Two nodes for one test, which may kill them."""
    with NodeWorld(kafka, postgres, tmp_path) as made:
        queues = Queues(made)
        queues.wait_spread()
        yield queues


def test_a_consumer_misses_nothing_when_its_node_is_killed_while_it_reads(alone: Queues) -> None:
    alone.ready("work")
    consumer = "/v1/topics/work/consumers/c"
    owner = alone.owner("work")
    other = 1 - owner
    alone.done(other, "PUT", consumer, {"from": "earliest"})
    alone.publish(other, "work", [str(number) for number in range(200)])
    body, key = [{"name": "work/key", "payload": "200"}], {"idempotency-key": "before"}
    _, stored = alone.ask(other, "POST", "/v1/topics/work/records", body, key)
    killing = threading.Thread(target=alone.world[owner].kill)
    got: set[int] = set()
    while len(got) < 201:  # also while nobody has the queue
        answer = alone.patient(other, "POST", consumer + "/fetch", {"limit": 2, "wait": 5})
        got |= {int(one["payload"]) for one in answer["records"]}
        if len(got) >= 12 and killing.ident is None:
            killing.start()
    killing.join()
    assert alone.owner("work") == other
    assert got == set(range(201))
    assert alone.ask(other, "POST", "/v1/topics/work/records", body, key) == (200, stored)
    alone.world[owner].start()


def test_leases_are_given_out_again_when_their_node_is_killed(alone: Queues) -> None:
    alone.ready("leased")
    group = "/v1/topics/leased/groups/g"
    owner = alone.owner("leased")
    other = 1 - owner
    alone.done(other, "PUT", group, {"deliveries_max": 2, "lease_s": 600})
    alone.publish(other, "leased", ["done", "open", "new"])
    first = _fetch_all(alone, other, group, 3)
    for receipt, one in first:
        if one["payload"] == "done":
            places = {str(one.get("partition", 0)): [one["offset"]]}
            alone.done(other, "POST", group + "/ack", {"receipt": receipt, "offsets": places})
    alone.world[owner].kill()
    again = _fetch_all(alone, other, group, 2)
    assert sorted(one["payload"] for _, one in again) == ["new", "open"]
    for receipt, one in again:
        places = {str(one.get("partition", 0)): [one["offset"]]}
        alone.done(other, "POST", group + "/nack", {"receipt": receipt, "offsets": places})
    wait_until(lambda: alone.done(other, "POST", group + "/fetch", {"limit": 10})["records"] == [])
    alone.world[owner].start()
    wait_until(lambda: alone.ask(0, "GET", "/v1/topics/leased.dead")[0] == 200)
    wait_until(lambda: sorted(alone.stored("leased.dead")) == ["new", "open"])


def _fetch_all(queues: Queues, at: int, group: str, count: int) -> list[tuple[str, Any]]:
    """So many records, each with the receipt it was given out with."""
    found: list[tuple[str, Any]] = []
    while len(found) < count:
        answer = queues.patient(at, "POST", group + "/fetch", {"limit": 10, "wait": 5})
        found += [(answer["receipt"], one) for one in answer["records"]]
    return found


def test_a_drained_node_hands_its_queue_over_and_nothing_is_lost_or_repeated(
    alone: Queues,
) -> None:
    alone.done(0, "POST", "/topics", {"name": "moved"})
    producer = alone.done(0, "POST", "/producer/register", {"topic": "moved"})["producer_id"]
    consumer = alone.done(1, "POST", "/consumer/register", {"topic": "moved"})["consumer_id"]
    asked = f"/consumer/consume?topic=moved&consumer_id={consumer}"
    for number in range(20):
        message = {"topic": "moved", "producer_id": producer, "message": str(number)}
        alone.done(number % 2, "POST", "/producer/produce", message)
    owner = alone.owner("moved")
    got = [alone.done(number % 2, "GET", asked)["message"] for number in range(8)]
    waiting = f"/v1/topics/moved/consumers/{consumer}x"
    alone.done(0, "PUT", waiting, {"from": "latest"})
    with ThreadPoolExecutor(1) as threads:
        poll = threads.submit(alone.patient, owner, "POST", waiting + "/fetch", {"wait": 55})
        alone.world.ask(owner, f"/v1/nodes/n{owner}/drain", {})
        got += [alone.done(number % 2, "GET", asked)["message"] for number in range(4)]
        wait_until(lambda: alone.owner("moved") == 1 - owner)
        got += [alone.done(number % 2, "GET", asked)["message"] for number in range(8)]
        assert poll.result(30)["records"] == []
    assert sorted(got, key=int) == [str(number) for number in range(20)]
    again = alone.done(owner, "POST", "/producer/register", {"topic": "moved"})["producer_id"]
    assert again != producer
    alone.world.ask(owner, f"/v1/nodes/n{owner}/drain", {"drain": False})
    alone.world.ask(1 - owner, f"/v1/nodes/n{1 - owner}/drain", {})
    wait_until(lambda: alone.owner("moved") == owner)
    assert alone.done(1 - owner, "GET", f"/size?topic=moved&consumer_id={consumer}")["size"] == 0


def test_what_a_group_has_given_out_stays_given_out_when_its_slot_moves(alone: Queues) -> None:
    alone.ready("kept")
    group = "/v1/topics/kept/groups/g"
    owner = alone.owner("kept")
    alone.done(0, "PUT", group, {"deliveries_max": 3, "lease_s": 600})
    alone.publish(0, "kept", ["a", "b", "c"])
    held = _fetch_all(alone, 1, group, 3)
    back, later, kept = sorted(held, key=lambda one: str(one[1]["payload"]))

    def answer(one: tuple[str, Any], **more: Any) -> dict[str, Any]:
        receipt, record = one
        places = {str(record.get("partition", 0)): [record["offset"]]}
        return {"receipt": receipt, "offsets": places, **more}

    alone.done(0, "POST", group + "/nack", answer(later, delay=600))
    alone.world.ask(owner, f"/v1/nodes/n{owner}/drain", {})
    wait_until(lambda: alone.owner("kept") == 1 - owner)
    assert alone.patient(0, "POST", group + "/fetch", {"limit": 10})["records"] == []
    alone.done(owner, "POST", group + "/extend", answer(kept))
    alone.done(owner, "POST", group + "/nack", answer(back))
    again = _fetch_all(alone, owner, group, 1)
    assert [(one["payload"], one["deliveries"]) for _, one in again] == [("a", 2)]
    alone.world.ask(owner, f"/v1/nodes/n{owner}/drain", {"drain": False})
    alone.wait_spread()
    alone.done(1 - owner, "POST", group + "/ack", answer(kept))
    alone.done(1 - owner, "POST", group + "/ack", answer(again[0]))
    assert alone.ask(0, "POST", group + "/ack", answer(kept))[0] == 409
    shown = alone.done(0, "GET", group)
    assert [one["deliveries"] for one in shown["pending"]] == [1], "the delayed one"


def test_topics_of_a_tenant_are_served_by_all_nodes_and_a_new_one_takes_its_part(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    world = NodeWorld(kafka, postgres, tmp_path, 3)
    queues = Queues(world)
    topics = [f"t{number}" for number in range(12)]
    try:
        world[0].start()
        world[1].start()
        queues.wait_spread()
        for topic in topics:
            queues.ready(topic)
            queues.done(0, "PUT", f"/v1/topics/{topic}/consumers/c", {"from": "earliest"})
            queues.publish(1, topic, ["1", "2", "3", "4"])
        assert {queues.owner(topic) for topic in topics} == {0, 1}
        first = {topic: _consume(queues, 0, topic, 2) for topic in topics}
        world[2].start()
        wait_until(lambda: sorted(Counter(queues.owners()).values()) == [5, 5, 6])
        for number, topic in enumerate(topics):
            rest = _consume(queues, number % 3, topic, 2)
            assert sorted(first[topic] + rest) == ["1", "2", "3", "4"]
        world[1].stop()
        wait_until(lambda: sorted(Counter(queues.owners()).values()) == [8, 8])
        for topic in topics:
            assert queues.done(2, "GET", f"/v1/topics/{topic}/consumers/c")["waiting"] == 0
    finally:
        world.__exit__(None, None, None)


def test_one_node_serves_all_while_a_node_is_there_that_knows_no_slots(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    world = NodeWorld(kafka, postgres, tmp_path)
    queues = Queues(world)

    def claimed() -> dict[str, set[str]]:
        """What each node has claimed."""
        rows = world.sql(
            "select n.name, c.name from {0}.claims c join {0}.nodes n on n.inc = c.owner_inc"
            " where c.kind = 'readers'"
        )
        found: dict[str, set[str]] = {}
        for node, name in rows:
            found.setdefault(node, set()).add(name)
        return found

    try:
        world[0].start()
        world[0].stop()
        # From now on the first node says that it is of an earlier version.
        world.sql(
            "create function {}.earlier() returns trigger language plpgsql as"
            " 'begin if new.name = ''n0'' then new.has_slots := 0; end if; return new; end'"
        )
        world.sql(
            "create trigger earlier before insert on {0}.nodes for each row"
            " execute function {0}.earlier()"
        )
        world[0].start()
        world[1].start()
        queues.ready("old")
        consumer = "/v1/topics/old/consumers/c"
        queues.done(1, "PUT", consumer, {"from": "earliest"})
        assert claimed() == {"n0": {"readers"}}
        queues.publish(1, "old", ["1", "2", "3", "4"])
        got = _consume(queues, 1, "old", 2)
        world.ask(0, "/v1/nodes/n0/drain", {})
        wait_until(lambda: claimed() == {"n1": {"readers"}})
        got += _consume(queues, 0, "old", 1)
        world[0].stop()
        wait_until(lambda: claimed() == {"n1": {str(slot) for slot in range(SLOTS)}})
        assert sorted(got + _consume(queues, 1, "old", 1)) == ["1", "2", "3", "4"]
    finally:
        world.__exit__(None, None, None)


def _consume(queues: Queues, at: int, topic: str, count: int) -> list[str]:
    """So many payloads, each committed before the next is read."""
    consumer = f"/v1/topics/{topic}/consumers/c"
    found: list[str] = []
    while len(found) < count:
        answer = queues.patient(at, "POST", consumer + "/fetch", {"limit": 1, "wait": 5})
        found += [one["payload"] for one in answer["records"]]
        queues.patient(at, "POST", consumer + "/commit", {})
    return found


def test_a_frozen_node_holds_up_its_readers_only_until_its_lease_is_over(alone: Queues) -> None:
    alone.ready("frozen")
    consumer = "/v1/topics/frozen/consumers/c"
    owner = alone.owner("frozen")
    other = 1 - owner
    alone.done(other, "PUT", consumer, {"from": "earliest"})
    alone.publish(other, "frozen", ["a"])
    alone.world.freeze(owner)
    answer = alone.patient(other, "POST", consumer + "/fetch", {"wait": 5})
    assert [one["payload"] for one in answer["records"]] == ["a"]
    alone.world.thaw(owner)
    alone.world[owner].wait_ended(3)
    alone.world[owner].start()
    assert alone.done(owner, "GET", consumer)["consumer"] == "c"
