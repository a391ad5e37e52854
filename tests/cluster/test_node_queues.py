"""Is the queue one queue, whatever node its producers, consumers and groups ask?"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli.main import main
from penstock.doors.http.passing.seal import SEAL, SIGNATURE, Seal, body_digest, sign
from tests.cluster.node_queues import Queues
from tests.cluster.node_world import NodeWorld
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def shared(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Queues]:
    """Two nodes that live as long as all tests."""
    with NodeWorld(kafka, postgres, tmp_path_factory.mktemp("shared")) as made:
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
