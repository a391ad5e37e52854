"""Many clients at once at the edge of a quota: is exactly what it allows acked, and all kept?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Connack, Connect, Puback, Publish, Suback, Subscribe, Will
from penstock.mqtt.packets import Subscription as Filter
from penstock.mqtt.reasons import Reason
from tests.doors.served import Served
from tests.doors.wire import Wire
from tests.http.asking import Asking
from tests.http.framed import Framed

T = TypeVar("T")
Start = Callable[..., Served]
CLIENTS = 40

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a broker with these lines of settings."""
    running = []

    def start(settings: str) -> Served:
        file = tmp_path / "penstock.toml"
        file.write_text(settings)
        running.append(Served(tmp_path / "data", "--config", str(file)).start())
        return running[-1]

    yield start
    for broker in running:
        broker.stop()


def all_at_once(work: Callable[[int], T], count: int = CLIENTS) -> list[T]:
    """Every one in a thread of its own, begun at the same moment."""
    gate = threading.Barrier(count)

    def run(number: int) -> T:
        gate.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def way_of(broker: Served, number: int) -> Wire:
    """One third of the clients in each version, and one in WebSockets."""
    if number % 3 == 2:
        return Wire(0, f"c{number}", MQTT_5, Framed(broker.http_port))  # type: ignore[arg-type]
    return Wire(broker.port, f"c{number}", (MQTT_3_1_1, MQTT_5)[number % 3])


def is_let_in(wire: Wire, will: Will | None = None) -> bool:
    """A client that is not let in hears so, and is closed."""
    wire.send(Connect(wire.client_id, True, 0, will, version=wire.version))
    answer = wire.expect(Connack)
    if answer.reason == Reason.SUCCESS:
        return True
    assert wire.version != MQTT_5 or answer.reason == Reason.QUOTA_EXCEEDED
    assert wire.is_closed()
    return False


@pytest.mark.parametrize("kind", ["connections", "wills"])
def test_connects_of_one_user(start: Start, kind: str) -> None:
    broker = start(f"[quotas.user]\n{kind} = 7")
    will = Will("gone", b"", 1) if kind == "wills" else None
    with ExitStack() as stack:
        wires = [stack.enter_context(way_of(broker, number)) for number in range(CLIENTS)]
        let_in = all_at_once(lambda number: is_let_in(wires[number], will))
        assert sum(let_in) == 7
        for wire, is_in in zip(wires, let_in, strict=True):
            if is_in:  # nobody who was let in is missing
                wire.publish("alive", b"", 1)


def test_subscriptions(start: Start) -> None:
    broker = start("[quotas]\nsubscriptions = 25")
    with ExitStack() as stack:
        wires = [stack.enter_context(way_of(broker, number)) for number in range(CLIENTS)]
        for wire in wires:
            wire.connect()

        def subscribe(number: int) -> list[str]:
            wanted = [f"t/{number}/{at}" for at in range(3)]
            wires[number].send(Subscribe(1, tuple(Filter(one, 1) for one in wanted)))
            reasons = wires[number].expect(Suback).reasons
            return [name for name, code in zip(wanted, reasons, strict=True) if code == 1]

        granted = all_at_once(subscribe)
        assert sum(map(len, granted)) == 25
        for number, names in enumerate(granted):
            for at in range(3):
                wires[0].publish(f"t/{number}/{at}", b"x", 1)
            received = [wires[number].receive().name for _ in names]
            assert received == names and wires[number].settle() == []


def test_topics_over_http_and_by_publishing(start: Start) -> None:
    broker = start("[mqtt]\nauto_create_topics = 100\n[quotas]\ntopics = 9")

    def create(number: int) -> bool:
        if number % 2:
            with Asking(broker.http_port) as client:
                status = client.ask("PUT", f"/v1/topics/t{number}", {}).status
                assert status in (201, 429)
                return status == 201
        with Wire(broker.port, f"c{number}", MQTT_5) as wire:
            wire.connect()
            wire.send(Publish(f"t{number}/a", b"first", 1, packet_id=1))
            try:
                return wire.pick(Puback, 1).reason == Reason.SUCCESS
            except EOFError:  # it was told why, and nothing was acked
                return False

    created = {f"t{number}" for number, is_made in enumerate(all_at_once(create)) if is_made}
    with Asking(broker.http_port) as client:
        found = {one["topic"] for one in client.ask("GET", "/v1/topics").json["topics"]}
        assert found - {"default"} == created and 8 <= len(created) <= len(found) <= 9
        for topic in created:
            info = client.ask("GET", f"/v1/topics/{topic}").json
            assert info["end_offset"] == (1 if int(topic[1:]) % 2 == 0 else 0)


def test_retained_messages_are_acked_up_to_the_quota_and_kept(start: Start) -> None:
    broker = start("[quotas]\nretained = 11")
    with ExitStack() as stack:
        wires = [Wire(broker.port, f"c{number}", MQTT_5) for number in range(CLIENTS)]
        for wire in wires:
            stack.enter_context(wire).connect()

        def retain(number: int) -> bool:
            if number % 4 == 3:
                message = {"payload": "x", "name": f"r/{number}", "retain": True}
                with Asking(broker.http_port) as client:
                    status = client.ask("POST", "/v1/topics/default/records", message).status
                assert status in (200, 429)
                return status == 200
            wires[number].send(Publish(f"r/{number}", b"%d" % number, 1, True, packet_id=1))
            return wires[number].pick(Puback, 1).reason == Reason.SUCCESS

        acked = {f"r/{n}" for n, is_kept in enumerate(all_at_once(retain)) if is_kept}
    assert len(acked) == 11
    for _ in range(2):
        with Wire(broker.port, "late", MQTT_5) as late:
            late.connect()
            late.subscribe("r/#", qos=1)
            assert {late.receive().name for _ in acked} == acked
            assert late.settle() == []
        broker.kill()
        broker.start()


def test_publishes_above_the_rate_are_refused_and_every_other_one_is_stored(start: Start) -> None:
    broker = start("[quotas.user]\npublish_rate = 50")
    with Asking(broker.http_port) as client:
        assert client.ask("PUT", "/v1/topics/t", {}).status == 201

    def publish(number: int) -> list[tuple[int, str]]:
        stored = []
        with Asking(broker.http_port) as client:
            for at in range(20):
                payload = f"{number}-{at}"
                answer = client.ask("POST", "/v1/topics/t/records", {"payload": payload})
                assert answer.status in (200, 429)
                if answer.status == 200:
                    stored.append((answer.json["first_offset"], payload))
        return stored

    acked = dict([one for stored in all_at_once(publish) for one in stored])
    assert 0 < len(acked) < CLIENTS * 20
    with Asking(broker.http_port) as client:
        page = client.ask("GET", "/v1/topics/t/records?limit=10000").json["records"]
    assert {one["offset"]: one["payload"] for one in page} == acked
