"""Quotas through the doors of a real broker: the answer comes before any ack, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_hex

import pytest

from penstock.log.files.directory import SOCKET_NAME
from penstock.model import unix_socket
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Puback,
    Publish,
    Unsuback,
    Unsubscribe,
    Will,
)
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.served import Served
from tests.doors.wire import Wire, kept
from tests.http.asking import WAIT_S, Answer, Asking
from tests.http.framed import open_websocket
from tests.waiting import wait_until

Start = Callable[[str], Served]
TOPICS = "/v1/topics"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a broker with these lines under [quotas]."""
    running = []

    def start(quotas: str) -> Served:
        settings = write(tmp_path, quotas)
        running.append(Served(tmp_path / "data", "--config", str(settings)).start())
        return running[-1]

    yield start
    for broker in running:
        broker.stop()


def write(directory: Path, quotas: str) -> Path:
    settings = directory / "penstock.toml"
    settings.write_text(f"[log]\nupkeep_every = '200ms'\n[quotas]\n{quotas}\n")
    return settings


def reload(broker: Served, quotas: str) -> list[str]:
    """Let the broker read these again; what is wrong with them."""
    write(broker.data.parent, quotas)
    with Asking(0, unix_socket.connect(broker.data / SOCKET_NAME, WAIT_S)) as operator:
        problems: list[str] = operator.ask("POST", "/v1/reload").json["problems"]
    return problems


def ask(broker: Served, method: str, path: str, body: object = b"") -> Answer:
    with Asking(broker.http_port) as asking:
        return asking.ask(method, path, body)


def publish(broker: Served, topic: str, payload: str) -> Answer:
    return ask(broker, "POST", f"{TOPICS}/{topic}/records", {"payload": payload})


def refusals(broker: Served, reason: str) -> float:
    text = ask(broker, "GET", "/metrics").body.decode()
    (line,) = [one for one in text.splitlines() if f'refused_total{{reason="{reason}"}}' in one]
    return float(line.rsplit(" ", 1)[1])


def arrive(broker: Served, client_id: str, version: int = MQTT_5, will: Will | None = None) -> Wire:
    """A client with a session that is kept; its CONNACK has not been read."""
    wire = Wire(broker.port, client_id, version)
    properties = kept() if version == MQTT_5 else kept(0)
    if version != MQTT_5:
        wire.send(Connect(client_id, False, 0, will, version=version))
    else:
        wire.send(Connect(client_id, False, 0, will, version=version, properties=properties))
    return wire


def test_a_topic_too_many_is_answered_429_and_the_others_stay(start: Start) -> None:
    broker = start("topics = 2")
    assert ask(broker, "PUT", f"{TOPICS}/a", {}).status == 201
    assert ask(broker, "PUT", f"{TOPICS}/b", {}).status == 201
    refused = ask(broker, "PUT", f"{TOPICS}/c", {})
    assert refused.status == 429
    assert "may have 2 topics and has 2" in refused.detail
    assert int(refused.headers["retry-after"]) >= 1
    assert refusals(broker, "quota_topics") == 1
    assert publish(broker, "a", "x").status == 200
    assert ask(broker, "DELETE", f"{TOPICS}/b").status == 204
    assert ask(broker, "PUT", f"{TOPICS}/c", {}).status == 201


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_session_too_many_is_refused_and_known_ones_come_back(start: Start, version: int) -> None:
    broker = start("sessions = 2")
    first = arrive(broker, "one", version)
    assert first.expect(Connack).reason == Reason.SUCCESS
    with arrive(broker, "two", version) as second:
        assert second.expect(Connack).reason == Reason.SUCCESS
    with arrive(broker, "three", version) as third:
        wanted = Reason.QUOTA_EXCEEDED if version == MQTT_5 else Reason.SERVER_UNAVAILABLE
        assert third.expect(Connack).reason == wanted
    first.disconnect()
    with arrive(broker, "one", version) as again:
        answer = again.expect(Connack)
        assert (answer.reason, answer.session_present) == (Reason.SUCCESS, True)
    with Wire(broker.port, "short") as short:
        assert short.connect().reason == Reason.SUCCESS, "what is not kept is no session"


def test_of_fifty_clients_at_once_only_as_many_get_sessions_as_the_quota_allows(
    start: Start,
) -> None:
    broker = start("sessions = 7")
    wires = [arrive(broker, f"client-{number}") for number in range(50)]
    reasons = [wire.expect(Connack).reason for wire in wires]
    assert sorted(reasons) == [Reason.SUCCESS] * 7 + [Reason.QUOTA_EXCEEDED] * 43
    for wire in wires:
        wire.close()


def test_a_connection_too_many_of_a_user_is_refused_until_another_one_ends(start: Start) -> None:
    broker = start("[quotas.user]\nconnections = 2")
    first, second = Wire(broker.port, "one"), Wire(broker.port, "two")
    assert first.connect().reason == Reason.SUCCESS
    assert second.connect().reason == Reason.SUCCESS
    with Wire(broker.port, "three", MQTT_5) as third:
        assert third.connect().reason == Reason.QUOTA_EXCEEDED
    with Wire(broker.port, "one") as again:
        assert again.connect().reason == Reason.SUCCESS, "it takes the place of the first"
        assert first.is_closed()
    second.disconnect()
    with Wire(broker.port, "three", MQTT_5) as third:
        assert third.connect().reason == Reason.SUCCESS


def test_a_stream_counts_as_a_connection(start: Start) -> None:
    broker = start("[quotas.user]\nconnections = 1")
    ask(broker, "PUT", f"{TOPICS}/t", {})
    with Asking(broker.http_port) as reader:
        reader.send(f"GET {TOPICS}/t/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        reader.until(b"event: start")
        assert ask(broker, "GET", f"{TOPICS}/t/stream").status == 429
        with Wire(broker.port, "one", MQTT_5) as wire:
            assert wire.connect().reason == Reason.QUOTA_EXCEEDED
    wait_for_place(broker)


def test_a_websocket_that_ends_gives_its_place_back(start: Start) -> None:
    broker = start("[quotas.user]\nconnections = 1")
    ask(broker, "PUT", f"{TOPICS}/t", {})
    for _ in range(3):
        with open_websocket(broker.http_port, f"{TOPICS}/t/stream") as stream:
            assert '"start"' in str(stream.recv(WAIT_S))
            assert ask(broker, "GET", f"{TOPICS}/t/stream").status == 429
        wait_for_place(broker)


def wait_for_place(broker: Served) -> None:
    """Until the broker has seen a client go, and lets another one in."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        with Wire(broker.port, "one", MQTT_5) as wire:
            if wire.connect().reason == Reason.SUCCESS:
                return wire.disconnect()
        assert time.monotonic() < deadline_s


def test_a_subscription_too_many_is_refused_alone(start: Start) -> None:
    broker = start("subscriptions = 3")
    with Wire(broker.port, "one", MQTT_5) as one, Wire(broker.port, "two", MQTT_5) as two:
        one.connect(), two.connect()
        assert one.subscribe("a", "b").reasons == (0, 0)
        assert two.subscribe("a", "b").reasons == (0, Reason.QUOTA_EXCEEDED)
        assert two.subscribe("a").reasons == (0,), "what it has may be asked for again"
        one.disconnect()
        assert two.subscribe("b").reasons == (0,)


def test_subscriptions_of_sessions_that_are_away_count_also_after_a_kill(start: Start) -> None:
    broker = start("subscriptions = 3")
    with arrive(broker, "away") as away:
        away.expect(Connack)
        assert away.subscribe("a", "b", "c").reasons == (0, 0, 0)
    for is_killed in (False, True):
        if is_killed:
            broker.kill()
            broker.start()
        with Wire(broker.port, "other", MQTT_5) as other:
            other.connect()
            assert other.subscribe("d").reasons == (Reason.QUOTA_EXCEEDED,), is_killed
    with arrive(broker, "away") as back, Wire(broker.port, "other", MQTT_5) as other:
        assert back.expect(Connack).session_present
        assert back.subscribe("c").reasons == (0,), "they count once"
        other.connect()
        assert other.subscribe("d").reasons == (Reason.QUOTA_EXCEEDED,)
        back.send(Unsubscribe(2, ("a",)))
        back.expect(Unsuback)
        assert other.subscribe("d").reasons == (0,)
    with Wire(broker.port, "away", MQTT_5) as clean, Wire(broker.port, "other", MQTT_5) as other:
        clean.connect()  # what the session had is gone
        other.connect()
        assert other.subscribe("d", "e", "f").reasons == (0, 0, 0)


def test_quotas_are_read_again_and_hold_for_clients_that_are_connected(start: Start) -> None:
    broker = start("subscriptions = 1\nstored_bytes = 1")
    ask(broker, "PUT", f"{TOPICS}/full", {})
    wait_until(lambda: publish(broker, "full", "x").status == 429)
    with Wire(broker.port, "one", MQTT_5) as one:
        one.connect()
        one.send(Publish("full", b"x", 1, packet_id=9))
        assert one.expect(Puback).reason == Reason.QUOTA_EXCEEDED
        assert one.subscribe("a", "b").reasons == (0, Reason.QUOTA_EXCEEDED)
        assert reload(broker, "subscriptions = 2\npublish_rate = 1") == []
        assert one.subscribe("b", "c").reasons == (0, Reason.QUOTA_EXCEEDED)
        wait_until(lambda: publish(broker, "full", "x").status == 200)
        for _ in range(3):
            one.publish("full", b"x", 1)
        assert refusals(broker, "quota_publish_rate") > 0, "it publishes faster than once a second"
        (problem,) = reload(broker, "publish_rate = 'much'")
        assert "publish_rate 'much'" in problem
        assert one.subscribe("c").reasons == (Reason.QUOTA_EXCEEDED,), "as before"


def test_a_retained_name_too_many_is_refused_before_its_ack(start: Start) -> None:
    broker = start("retained = 2")
    with Wire(broker.port, "one", MQTT_5) as wire:
        wire.connect()
        for name in ("a", "b"):
            wire.publish(name, b"1", 1, retain=True)
        wire.send(Publish("c", b"1", 1, True, packet_id=77))
        assert wire.pick(Puback, 77).reason == Reason.QUOTA_EXCEEDED
        wire.publish("a", b"2", 1, retain=True)  # instead of the one before
        wire.publish("c", b"not retained", 1)
        wire.publish("b", b"", 1, retain=True)  # makes room
        wire.publish("c", b"3", 1, retain=True)
        wire.subscribe("#")
        found = {message.name: message.payload for message in (wire.receive(), wire.receive())}
        assert found == {"a": b"2", "c": b"3"}


def test_retained_names_over_http_count_and_a_request_is_stored_whole_or_not_at_all(
    start: Start,
) -> None:
    broker = start("retained = 3")
    path = f"{TOPICS}/default/records"

    def retain(*names: str) -> int:
        messages = [{"payload": "x", "name": name, "retain": True} for name in names]
        return ask(broker, "POST", path, messages).status

    with Wire(broker.port, "one", MQTT_5) as wire:  # makes the default topic
        wire.connect()
        wire.publish("first", b"1", 1, retain=True)
    assert retain("a", "b", "c") == 429
    assert retain("a", "b") == 200, "what was refused does not count"
    assert retain("c") == 429 and retain("a", "b", "first") == 200
    assert refusals(broker, "quota_retained") == 2


def test_before_mqtt_5_a_retained_name_too_many_closes_the_connection(start: Start) -> None:
    broker = start("retained = 1")
    with Wire(broker.port, "one") as wire:
        wire.connect()
        wire.publish("a", b"1", 1, retain=True)
        wire.send(Publish("b", b"1", 1, True, packet_id=77))
        assert wire.is_closed()


def test_retained_bytes_have_a_quota(start: Start) -> None:
    broker = start("retained_bytes = 1000")
    with Wire(broker.port, "one", MQTT_5) as wire:
        wire.connect()
        wire.publish("a", bytes(900), 1, retain=True)
        wire.send(Publish("b", bytes(101), 1, True, packet_id=77))
        assert wire.pick(Puback, 77).reason == Reason.QUOTA_EXCEEDED
        wire.publish("b", bytes(100), 1, retain=True)


def test_a_fast_mqtt_publisher_is_slowed_down_and_loses_nothing(start: Start) -> None:
    rate, count = 500, 1_500
    broker = start(f"publish_rate = {rate}")
    with Wire(broker.port, "fast") as wire, Wire(broker.port, "reader") as reader:
        wire.connect(), reader.connect()
        reader.subscribe("t", qos=1)
        begin_s = time.monotonic()
        ids = [wire.take_id() for _ in range(count)]
        wire.send(*[Publish("t", b"%d" % one, 1, packet_id=one) for one in ids[: count // 2]])
        wire.send(*[Publish("t", b"%d" % one, 1, packet_id=one) for one in ids[count // 2 :]])
        received = [int(reader.receive().payload) for _ in ids]
        assert received == ids
        assert [wire.pick(Puback, one).packet_id for one in ids] == ids
        wire.settle()
        # A second of the rate goes at once, and what came in the last read is not waited for.
        assert time.monotonic() - begin_s >= (count / 2 - rate) / rate
    assert refusals(broker, "quota_publish_rate") > 0


def test_a_fast_http_publisher_is_told_when_to_come_back(start: Start) -> None:
    broker = start("[quotas.user]\npublish_rate = 5")
    ask(broker, "PUT", f"{TOPICS}/t", {})
    answers = [publish(broker, "t", str(number)) for number in range(12)]
    stored = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status == 429]
    assert len(stored) + len(refused) == 12 and stored and refused
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert "publish_rate" in refused[0].detail
    size = ask(broker, "GET", f"{TOPICS}/t").json
    assert size["end_offset"] == len(stored), "what was refused was not stored"


def test_publishes_are_refused_above_the_stored_bytes_until_something_is_deleted(
    start: Start,
) -> None:
    broker = start("stored_bytes = '1 MiB'")
    for topic in ("big", "small"):
        ask(broker, "PUT", f"{TOPICS}/{topic}", {})
    assert publish(broker, "big", token_hex(1_000_000)).status == 200
    # Some hundred bytes each time: until the quota is looked at, the small topic stays small.
    wait_until(lambda: publish(broker, "small", "x").status == 429)
    assert "stored_bytes" in publish(broker, "small", "x").detail
    with Wire(broker.port, "one", MQTT_5) as wire:
        wire.connect()
        wire.send(Publish("t", b"x", 1, packet_id=77))
        assert wire.pick(Puback, 77).reason == Reason.QUOTA_EXCEEDED
    assert ask(broker, "DELETE", f"{TOPICS}/big").status == 204
    wait_until(lambda: publish(broker, "small", "x").status == 200)


def test_of_forty_registrations_at_once_only_as_many_succeed_as_the_quota_allows(
    start: Start,
) -> None:
    broker = start("consumers = 6\ngroups = 5")
    ask(broker, "PUT", f"{TOPICS}/t", {})
    with ThreadPoolExecutor(40) as pool:
        consumers = pool.map(
            lambda n: ask(broker, "PUT", f"{TOPICS}/t/consumers/c{n}", {}).status, range(40)
        )
        assert sorted(consumers) == [201] * 6 + [429] * 34
        groups = pool.map(
            lambda n: ask(broker, "POST", f"{TOPICS}/t/groups/g{n}/fetch", {}).status, range(40)
        )
        assert sorted(groups) == [200] * 5 + [429] * 35


def test_a_will_too_many_is_refused_with_its_client(start: Start) -> None:
    broker = start("[quotas.user]\nwills = 1")
    will = Will("gone", b"one", 1, False)
    first = arrive(broker, "one", will=will)
    assert first.expect(Connack).reason == Reason.SUCCESS
    with arrive(broker, "two", will=will) as second:
        assert second.expect(Connack).reason == Reason.QUOTA_EXCEEDED
    first.disconnect()  # its will goes with it
    with arrive(broker, "two", will=will) as second:
        assert second.expect(Connack).reason == Reason.SUCCESS


def test_quotas_hold_after_a_kill(start: Start) -> None:
    broker = start("sessions = 1\ntopics = 2")
    with arrive(broker, "one") as wire:
        assert wire.expect(Connack).reason == Reason.SUCCESS
    ask(broker, "PUT", f"{TOPICS}/a", {})
    broker.kill()
    broker.start()
    with arrive(broker, "two") as other:
        assert other.expect(Connack).reason == Reason.QUOTA_EXCEEDED
    assert ask(broker, "PUT", f"{TOPICS}/b", {}).status == 429


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_a_client_that_comes_back_may_leave_a_new_will_for_its_last_one(
    start: Start, is_taken_over: bool
) -> None:
    broker = start("[quotas.user]\nwills = 1")
    later = Properties(will_delay_interval=600)
    will = Will("gone", b"", 1, properties=later)
    first = arrive(broker, "one", will=will)
    assert first.expect(Connack).reason == Reason.SUCCESS
    if not is_taken_over:
        first.close()
    with arrive(broker, "one", will=will) as again:
        answer = again.expect(Connack)
        assert (answer.reason, answer.session_present) == (Reason.SUCCESS, True)
        with Wire(broker.port, "two", MQTT_5) as other:
            assert other.connect(will=will).reason == Reason.QUOTA_EXCEEDED
        again.disconnect()
    with Wire(broker.port, "two", MQTT_5) as other:
        assert other.connect(will=will).reason == Reason.SUCCESS
