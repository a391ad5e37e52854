"""Is the queue one queue, whatever node its producers, consumers and groups ask?"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker.queue.readers import SLOTS, slot_of
from penstock.cli.main import main
from penstock.doors.http.passing.seal import SEAL, SIGNATURE, Seal, body_digest, sign
from tests.cluster.node_world import NodeWorld
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

RECEIPT = "receipt"


class Queues:
    """Requests to the nodes of a world, over TCP."""

    def __init__(self, world: NodeWorld) -> None:
        self.world = world

    def ask(
        self,
        at: int,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Status and body of an answer."""
        target = http.client.HTTPConnection("127.0.0.1", self.world[at].http_port, timeout=60)
        data = None if body is None else json.dumps(body)
        told = {"content-type": "application/json", **(headers or {})}
        try:
            target.request(method, path, data, told)
            answer = target.getresponse()
            text = answer.read()
        finally:
            target.close()
        return answer.status, json.loads(text) if text else None

    def done(self, at: int, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.ask(at, method, path, body)
        assert status < 300, (at, method, path, status, answer)
        return answer

    def patient(self, at: int, method: str, path: str, body: Any = None) -> Any:
        """As `done`; asks again while the node that has to answer is replaced."""
        for _ in range(30):
            status, answer = self.ask(at, method, path, body)
            if status < 300:
                return answer
            assert status in (502, 503), (status, answer)
        raise AssertionError("nobody answers")

    def owners(self) -> list[int]:
        """The nodes that have the slots of the default tenant, in the order of the slots."""
        schema = self.world.schema
        rows = self.world.postgres.fetch(
            f"select c.name, n.name from {schema}.claims c"
            f" join {schema}.nodes n on n.inc = c.owner_inc"
            " where c.kind = 'readers' and c.tenant = 'default'"
        )
        found = {int(slot): int(name.removeprefix("n")) for slot, name in rows}
        return [found.get(slot, -1) for slot in range(SLOTS)]

    def owner(self, topic: str) -> int:
        """The node that has the consumers and groups of a topic."""
        return self.owners()[slot_of(topic)]

    def wait_spread(self) -> None:
        """Until both nodes serve as many slots."""
        wait_until(lambda: sorted(self.owners()) == [0] * (SLOTS // 2) + [1] * (SLOTS // 2))

    @property
    def secret(self) -> bytes:
        rows = self.world.postgres.fetch(
            f"select value from {self.world.schema}.cluster where name = 'secret'"
        )
        return bytes.fromhex(rows[0][0])

    def inc(self, at: int) -> int:
        nodes = self.world.ask(at, "/v1/nodes")["nodes"]
        return next(int(one["incarnation"]) for one in nodes if one["is_self"])

    def url(self, at: int) -> str:
        return f"http://127.0.0.1:{self.world[at].http_port}"

    def publish(self, at: int, topic: str, payloads: list[str]) -> None:
        body = [{"name": f"{topic}/{text}", "payload": text} for text in payloads]
        self.done(at, "POST", f"/v1/topics/{topic}/records", body)

    def stored(self, topic: str) -> list[str]:
        """All payloads of a topic, as a node reads them from Kafka."""
        found = self.done(0, "GET", f"/v1/topics/{topic}/records?limit=10000")["records"]
        return [one["payload"] for one in found]

    def ready(self, topic: str) -> None:
        """Make a topic, and wait until both nodes know it."""
        self.done(1, "PUT", f"/v1/topics/{topic}", {})
        for at in (0, 1):
            wait_until(lambda at=at: self.ask(at, "GET", f"/v1/topics/{topic}")[0] == 200)


@pytest.fixture(scope="module")
def shared(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Queues]:
    """Two nodes that live as long as all tests."""
    with NodeWorld(kafka, postgres, tmp_path_factory.mktemp("shared")) as made:
        queues = Queues(made)
        queues.wait_spread()
        yield queues


@pytest.fixture
def alone(kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path) -> Iterator[Queues]:
    """Two nodes for one test, which may kill them."""
    with NodeWorld(kafka, postgres, tmp_path) as made:
        queues = Queues(made)
        queues.wait_spread()
        yield queues


def test_a_message_produced_on_any_node_is_consumed_once_on_any_other(shared: Queues) -> None:
    shared.done(1, "POST", "/topics", {"name": "seed"})
    producers = [
        shared.done(at, "POST", "/producer/register", {"topic": "seed"})["producer_id"]
        for at in (0, 1, 0, 1)
    ]
    consumers = [
        shared.done(at, "POST", "/consumer/register", {"topic": "seed"})["consumer_id"]
        for at in (1, 0)
    ]
    assert len(set(producers)) == 4 and len(set(consumers)) == 2
    for number in range(12):
        message = {
            "topic": "seed",
            "producer_id": producers[number % 4],
            "message": f"m{number}",
        }
        shared.done(number % 2, "POST", "/producer/produce", message)
    asked = f"?topic=seed&consumer_id={consumers[0]}"
    assert shared.done(0, "GET", "/size" + asked)["size"] == 12
    got = [
        shared.done(number % 2, "GET", "/consumer/consume" + asked)["message"]
        for number in range(12)
    ]
    assert sorted(got) == sorted(f"m{number}" for number in range(12))
    status, answer = shared.ask(1, "GET", "/consumer/consume" + asked)
    assert status == 500 and "has read all messages" in answer["message"]
    assert shared.done(1, "GET", f"/size?topic=seed&consumer_id={consumers[1]}")["size"] == 12


# Consumers


def test_a_consumer_reads_each_record_once_over_all_nodes(shared: Queues) -> None:
    shared.done(1, "PUT", "/v1/topics/orders", {})
    consumer = "/v1/topics/orders/consumers/billing"
    shared.done(1, "PUT", consumer, {"from": "earliest"})  # the other node may not know the topic
    shared.publish(1, "orders", [str(number) for number in range(40)])
    got: list[str] = []
    while len(got) < 40:
        answer = shared.done(len(got) % 2, "POST", consumer + "/fetch", {"limit": 7, "wait": 10})
        got += [one["payload"] for one in answer["records"]]
    assert sorted(got, key=int) == [str(number) for number in range(40)]
    committed = shared.done(1, "POST", consumer + "/commit", {})
    assert shared.done(0, "GET", consumer)["next_offset"] == committed["offset"]
    shared.done(1, "POST", consumer + "/seek", {"from": "earliest"})
    assert shared.done(0, "GET", consumer)["waiting"] == 40
    assert shared.ask(0, "PUT", consumer, {}, {"if-none-match": "*"})[0] == 409
    assert shared.ask(1, "PUT", consumer, {}, {"if-none-match": "*"})[0] == 409
    shared.done(1, "DELETE", consumer)
    assert shared.ask(0, "GET", consumer)[0] == 404


def test_a_consumer_that_waits_at_one_node_receives_what_another_one_stores(
    shared: Queues,
) -> None:
    shared.ready("waits")
    consumer = "/v1/topics/waits/consumers/c"
    shared.done(0, "PUT", consumer, {"from": "latest"})
    with ThreadPoolExecutor(2) as threads:
        asked = threads.submit(
            shared.done, 1 - shared.owner("waits"), "POST", consumer + "/fetch", {"wait": 30}
        )
        shared.publish(shared.owner("waits"), "waits", ["now"])
        assert [one["payload"] for one in asked.result()["records"]] == ["now"]


def test_an_answer_of_many_megabytes_comes_through_another_node_unchanged(shared: Queues) -> None:
    shared.ready("large")
    payloads = [str(number) * 300_000 for number in range(10)]
    body = [{"name": f"large/{at}", "payload": text} for at, text in enumerate(payloads)]
    shared.done(0, "POST", "/v1/topics/large/records", body)
    consumer = "/v1/topics/large/consumers/c"
    shared.done(0, "PUT", consumer, {"from": "earliest"})
    got: list[str] = []
    while len(got) < 10:
        answer = shared.done(1 - shared.owner("large"), "POST", consumer + "/fetch", {"wait": 10})
        got += [one["payload"] for one in answer["records"]]
    assert sorted(got) == payloads


# Groups


def test_what_one_node_gives_out_another_one_takes_back(shared: Queues) -> None:
    shared.ready("jobs")
    group = "/v1/topics/jobs/groups/packers"
    shared.done(1, "PUT", group, {"deliveries_max": 2})
    shared.publish(0, "jobs", ["a", "b", "c"])
    seen: list[tuple[str, str, Any, int]] = []
    while len(seen) < 3:
        fetched = shared.done(len(seen) % 2, "POST", group + "/fetch", {"limit": 1, "wait": 10})
        one = fetched["records"][0]
        places = {str(one.get("partition", 0)): [one["offset"]]}
        seen.append((one["payload"], fetched["receipt"], places, one["deliveries"]))
    assert sorted(one[0] for one in seen) == ["a", "b", "c"]
    for at, (payload, receipt, places, _) in enumerate(sorted(seen)):
        answer = {"receipt": receipt, "offsets": places}
        if payload == "a":
            assert shared.done(1, "POST", group + "/extend", answer)["records"] == 1
            assert shared.done(0, "POST", group + "/ack", answer)["records"] == 1
            assert shared.ask(1, "POST", group + "/ack", answer)[0] == 409
        else:
            shared.done(at % 2, "POST", group + "/nack", answer)
    again = shared.done(1, "POST", group + "/fetch", {"wait": 10})
    assert {one["payload"]: one["deliveries"] for one in again["records"]} == {"b": 2, "c": 2}
    shared.done(0, "POST", group + "/nack", {"receipt": again["receipt"], "reason": "no"})
    assert shared.done(1, "POST", group + "/fetch", {})["records"] == []
    wait_until(lambda: sorted(shared.stored("jobs.dead")) == ["b", "c"])
    assert shared.done(1, "POST", group + "/redrive", {})["records"] == 2
    back = shared.done(0, "POST", group + "/fetch", {"wait": 10})
    assert sorted(one["payload"] for one in back["records"]) == ["b", "c"]


# Clients


@pytest.mark.parametrize("at", [0, 1])
def test_the_python_client_works_at_any_node(shared: Queues, at: int) -> None:
    topic = f"python{at}"
    shared.ready(topic)
    with penstock.connect(shared.url(at)) as client:
        client.publish_many(["a", "b", "c"], topic)
        client.subscribe("reader", topic)
        got: list[str] = []
        while len(got) < 3:
            got += [record.value for record in client.consume("reader", topic)]
        assert sorted(got) == ["a", "b", "c"]
        client.commit("reader", topic)
        work = client.join_group("workers", topic)
        done = 0
        while done < 3:
            jobs = work.fetch(10, wait_s=10)
            work.ack(jobs)
            done += len(jobs)
        assert [one.group for one in client.groups(topic)] == ["workers"]
        client.remove_group("workers", topic)


@pytest.mark.parametrize("at", [0, 1])
def test_commands_work_at_any_node(
    shared: Queues, at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"commands{at}"
    shared.ready(topic)
    shared.publish(0, topic, ["hello"])
    wait_until(lambda: shared.stored(topic) == ["hello"])
    for where in (shared.url(at), str(shared.world[at].data)):
        name = "tcp" if where.startswith("http") else "socket"
        assert main(["consume", topic, "--consumer", name, "--at", where]) == 0
        assert "hello" in capsys.readouterr().out
        assert main(["group", "create", topic, name, "--at", where]) == 0
        assert main(["group", "show", topic, name, "--at", where]) == 0
        assert name in capsys.readouterr().out


# Idempotency keys


def test_a_key_that_is_used_on_two_nodes_at_the_same_moment_stores_once(shared: Queues) -> None:
    shared.ready("once")
    path = "/v1/topics/once/records"
    with ThreadPoolExecutor(8) as threads:
        for number in range(10):
            body = [{"name": "once/a", "payload": str(number)}]
            asked = [
                threads.submit(
                    shared.ask, at % 2, "POST", path, body, {"idempotency-key": f"k{number}"}
                )
                for at in range(8)
            ]
            answers = [one.result() for one in asked]
            assert [status for status, _ in answers] == [200] * 8
            assert all(answer == answers[0][1] for _, answer in answers)
    wait_until(lambda: sorted(shared.stored("once"), key=int) == [str(n) for n in range(10)])
    used = {"idempotency-key": "k1"}
    for at in (0, 1):
        status, answer = shared.ask(at, "POST", path, [{"payload": "other"}], used)
        assert status == 422, answer


# Who asks


def test_another_node_knows_who_asks(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    with NodeWorld(kafka, postgres, tmp_path) as world:
        queues = Queues(world)
        rules = ["allow read,manage topic:shared"]
        world.ask(1, "/v1/roles/readers", {"rules": rules}, "PUT")
        for user, roles in (("boss", ["admin"]), ("ann", ["readers"]), ("bob", ["readers"])):
            given = {"password": "a long password", "roles": roles}
            world.ask(1, f"/v1/users/{user}", given, "PUT")
        for at in (0, 1):
            wait_until(
                lambda at=at: (
                    {one["user"] for one in world.ask(at, "/v1/users")["users"]}
                    == {"boss", "ann", "bob"}
                )
            )
        other = 1 - queues.owner("shared")
        assert queues.ask(other, "GET", "/v1/topics/shared/consumers/c")[0] == 401
        ann, bob = _basic("ann"), _basic("bob")
        assert queues.ask(other, "PUT", "/v1/topics/shared", {}, ann)[0] == 201
        consumer = "/v1/topics/shared/consumers/c"
        assert queues.ask(other, "PUT", consumer, {}, ann)[0] == 201
        for at in (0, 1):
            assert queues.ask(at, "POST", consumer + "/fetch", {}, bob)[0] == 403
            assert queues.ask(at, "POST", consumer + "/fetch", {}, ann)[0] == 200
            assert queues.ask(at, "GET", "/v1/topics/secret/consumers", None, ann)[0] == 403
        assert world.ask(other, consumer)["consumer"] == "c"  # over the socket: an operator


def _basic(user: str) -> dict[str, str]:
    text = base64.b64encode(f"{user}:a long password".encode()).decode()
    return {"authorization": f"Basic {text}"}


def test_a_request_that_says_that_a_node_passed_it_on_is_refused_without_the_secret(
    shared: Queues,
) -> None:
    shared.ready("guarded")
    path = "/v1/topics/guarded/consumers"
    owner = shared.owner("guarded")
    inc = shared.inc(owner)
    secret = shared.secret

    def seal(**changed: Any) -> Seal:
        values = {"sender": inc, "target": inc, "at_us": time.time_ns() // 1_000} | changed
        given: dict[str, Any] = {
            "tenant": "default",
            "user": "",
            "proof": "directory",
            "roles": (),
            "credential": "",
            "expires_us": 0,
            "source": "",
            "about": "default",
            "topics": 0,
            "headers": {},
            "body": body_digest(b""),
        }
        return Seal(**(given | values))

    def ask(key: bytes, sealed: Seal, target: str = path, body: Any = None) -> int:
        shown, signature = sign(key, "GET", path, sealed)
        headers = {SEAL.decode(): shown.decode(), SIGNATURE.decode(): signature.decode()}
        return shared.ask(owner, "GET", target, body, headers)[0]

    assert ask(secret, seal()) == 200  # what the nodes send each other
    assert ask(b"", seal()) == 403
    assert ask(secret[::-1], seal()) == 403
    assert ask(secret, seal(target=inc + 1)) == 503  # of the node that was here before
    assert ask(secret, seal(at_us=time.time_ns() // 1_000 - 120_000_000)) == 503
    assert ask(secret, seal(), body={"other": "body"}) == 403
    assert ask(secret, seal(), target="/v1/topics/other/consumers") == 403
    assert shared.ask(owner, "GET", path, None, {SEAL.decode(): "e30="})[0] == 403


# When the node that has the queue goes


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
