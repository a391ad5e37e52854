"""Wills through real connections: does every end but a goodbye publish one, exactly once?"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingresp,
    Publish,
    Subscription,
    Will,
)
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire, kept

VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
DELAY_S = 2  # long enough to come back in on a slow machine


def watching(broker: Hosted, name: str, qos: int = 1) -> Wire:
    """Somebody who reads a name, in MQTT 5."""
    watcher = Wire(broker.port, f"watching-{name}", MQTT_5)
    watcher.connect()
    watcher.subscribe(Subscription(name, qos, retain_as_published=True))
    return watcher


def client(
    broker: Hosted,
    name: str,
    will: Will | None,
    version: int = MQTT_5,
    *,
    clean: bool = True,
    properties: Properties = NO_PROPERTIES,
    keep_alive_s: int = 0,
) -> Wire:
    wire = Wire(broker.port, f"client-{name}", version)
    answer = wire.connect(clean=clean, properties=properties, keep_alive_s=keep_alive_s, will=will)
    assert answer.reason == Reason.SUCCESS
    return wire


def delayed(name: str, delay_s: int, payload: bytes = b"gone") -> Will:
    return Will(name, payload, 1, properties=Properties(will_delay_interval=delay_s))


def nothing_comes(broker: Hosted, watcher: Wire) -> bool:
    """Nothing is on its way to the watcher, and nothing has come."""
    broker.wait_idle()
    return watcher.settle() == []


def stored_wills(data: Path) -> list[str]:
    """Names of the wills that the catalog on disk holds."""
    with sqlite3.connect(f"file:{data}/catalog.db?mode=ro", uri=True) as stored:
        return [name for (name,) in stored.execute("select name from wills order by will_id")]


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_a_client_that_hangs_up_leaves_its_will(
    broker: Hosted, name: str, version: int, qos: int, retain: bool
) -> None:
    with watching(broker, name, 2) as watcher:
        client(broker, name, Will(name, b"gone", qos, retain), version).close()
        message = watcher.receive()
        assert (message.payload, message.qos, message.retain) == (b"gone", qos, retain)
        assert nothing_comes(broker, watcher)
    with watching(broker, name) as late:
        assert len(late.settle()) == retain


@VERSIONS
def test_a_client_that_says_goodbye_leaves_nothing(broker: Hosted, name: str, version: int) -> None:
    with watching(broker, name) as watcher:
        client(broker, name, Will(name, b"gone"), version).disconnect()
        assert nothing_comes(broker, watcher)


@pytest.mark.parametrize("reason", [Reason.DISCONNECT_WITH_WILL, Reason.UNSPECIFIED_ERROR])
def test_any_other_goodbye_leaves_the_will(broker: Hosted, name: str, reason: Reason) -> None:
    with watching(broker, name) as watcher:
        leaving = client(broker, name, Will(name, b"gone", 1))
        leaving.send(Disconnect(reason))
        assert watcher.receive().payload == b"gone"
        assert nothing_comes(broker, watcher)


@VERSIONS
def test_a_client_that_falls_silent_leaves_its_will(
    broker: Hosted, name: str, version: int
) -> None:
    with (
        watching(broker, name) as watcher,
        client(broker, name, Will(name, b"gone", 1), version, keep_alive_s=1),
    ):
        assert watcher.receive().payload == b"gone"


@VERSIONS
def test_a_client_that_breaks_a_rule_leaves_its_will(
    broker: Hosted, name: str, version: int
) -> None:
    with (
        watching(broker, name) as watcher,
        client(broker, name, Will(name, b"gone", 1), version) as rude,
    ):
        rude.send(Pingresp())  # only a broker says that
        assert watcher.receive().payload == b"gone"


def test_a_goodbye_that_breaks_a_rule_leaves_the_will(broker: Hosted, name: str) -> None:
    with (
        watching(broker, name) as watcher,
        client(broker, name, Will(name, b"gone", 1)) as rude,
    ):
        rude.send(Disconnect(properties=kept()))  # the session was to end with the connection
        assert rude.expect(Disconnect).reason == Reason.PROTOCOL_ERROR
        assert watcher.receive().payload == b"gone"


@VERSIONS
def test_a_client_taken_over_leaves_its_will_before_its_successor_is_let_in(
    broker: Hosted, name: str, version: int
) -> None:
    """`online` of the new connection must stand, not `offline` of the old one."""
    offline = Will(name, b"offline", 1, True)
    with watching(broker, name) as watcher:
        first = client(broker, name, offline, version)
        first.publish(name, b"online 1", 1, retain=True)
        for number in range(2, 6):
            second = client(broker, name, offline, version)
            second.publish(name, b"online %d" % number, 1, retain=True)
            first.close()
            first = second
        seen = [watcher.receive().payload for _ in range(9)]
        assert seen[0] == b"online 1"
        assert seen[1::2] == [b"offline"] * 4
        assert seen[2::2] == [b"online %d" % number for number in range(2, 6)]
        first.disconnect()
        assert nothing_comes(broker, watcher)


@VERSIONS
def test_a_client_lost_and_back_at_once_is_seen_as_online(
    broker: Hosted, name: str, version: int
) -> None:
    offline = Will(name, b"offline", 1, True)
    for number in range(20):
        wire = client(broker, name, offline, version)
        wire.publish(name, b"online %d" % number, 1, retain=True)
        wire.close()
        with client(broker, name, None, version) as back:
            back.publish(name, b"back %d" % number, 1, retain=True)
            with watching(broker, name) as watcher:
                assert watcher.receive().payload == b"back %d" % number
            back.disconnect()


def test_a_delayed_will_is_called_off_by_a_client_that_comes_back(
    broker: Hosted, name: str
) -> None:
    with watching(broker, name) as watcher:
        for back_will in (None, delayed(name, 3600, b"other")):
            client(broker, name, delayed(name, DELAY_S), properties=kept()).close()
            back = client(broker, name, back_will, clean=False, properties=kept())
            broker.wait_past_us(DELAY_S * 1_500_000)
            assert nothing_comes(broker, watcher)
            back.disconnect()


def test_a_delayed_will_is_called_off_by_a_takeover_that_goes_on_with_the_session(
    broker: Hosted, name: str
) -> None:
    with watching(broker, name) as watcher:
        first = client(broker, name, delayed(name, DELAY_S), properties=kept())
        with client(broker, name, None, clean=False, properties=kept()):
            assert first.expect(Disconnect).reason == Reason.SESSION_TAKEN_OVER
            broker.wait_past_us(DELAY_S * 1_500_000)
            assert nothing_comes(broker, watcher)


def test_a_delayed_will_is_published_at_once_when_a_clean_start_ends_its_session(
    broker: Hosted, name: str
) -> None:
    with watching(broker, name) as watcher:
        client(broker, name, delayed(name, 3600), properties=kept()).close()
        broker.wait_idle()
        assert nothing_comes(broker, watcher)
        with client(broker, name, None, properties=kept()):
            assert watcher.receive().payload == b"gone"
        first = client(broker, name, delayed(name, 3600, b"taken"), properties=kept())
        with client(broker, name, None):
            assert first.expect(Disconnect).reason == Reason.SESSION_TAKEN_OVER
            assert watcher.receive().payload == b"taken"


def test_a_delayed_will_is_published_when_its_time_has_come(broker: Hosted, name: str) -> None:
    with watching(broker, name) as watcher:
        lost = client(broker, name, delayed(name, DELAY_S), properties=kept())
        began_s = time.monotonic()
        lost.close()
        assert watcher.receive().payload == b"gone"
        assert time.monotonic() - began_s >= DELAY_S


def test_a_delayed_will_is_published_when_its_session_ends(broker: Hosted, name: str) -> None:
    with watching(broker, name) as watcher:
        client(broker, name, delayed(name, 3600, b"with it")).close()
        assert watcher.receive().payload == b"with it"
        client(broker, name, delayed(name, 3600, b"after it"), properties=kept(1)).close()
        assert watcher.receive().payload == b"after it"
        leaving = client(broker, name, delayed(name, 3600, b"told so"), properties=kept())
        leaving.send(Disconnect(Reason.DISCONNECT_WITH_WILL, kept(0)))
        assert watcher.receive().payload == b"told so"


def test_the_properties_of_a_will_come_with_the_message(broker: Hosted, name: str) -> None:
    properties = Properties(
        payload_format_indicator=1,
        message_expiry_interval=60,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\x00\xff",
        user_properties=(("k", "1"), ("k", "2")),
    )
    with watching(broker, name) as watcher:
        client(broker, name, Will(name, b"gone", 1, properties=properties)).close()
        got = watcher.receive().properties
    assert got.payload_format_indicator == 1
    assert got.message_expiry_interval is not None and 50 < got.message_expiry_interval <= 60
    assert (got.content_type, got.response_topic) == ("text/plain", "answers")
    assert got.correlation_data == b"\x00\xff"
    assert got.user_properties == (("k", "1"), ("k", "2"))
    assert got.will_delay_interval is None


def test_a_will_expires_as_any_message(broker: Hosted, name: str) -> None:
    away = Wire(broker.port, f"away-{name}", MQTT_5)
    away.connect(clean=False, properties=kept())
    away.subscribe(name, qos=1)
    away.disconnect()
    for expiry_s, payload in ((1, b"short"), (3600, b"long")):
        properties = Properties(message_expiry_interval=expiry_s)
        client(broker, name, Will(name, payload, 1, properties=properties)).close()
    broker.wait_idle()
    broker.wait_past_us(1_100_000)
    with Wire(broker.port, f"away-{name}", MQTT_5) as back:
        back.connect(clean=False, properties=kept())
        assert back.receive().payload == b"long"
        assert back.settle() == []


def test_no_local_holds_for_the_successor_of_a_client(broker: Hosted, name: str) -> None:
    first = client(broker, name, Will(name, b"gone", 1), properties=kept())
    first.subscribe(Subscription(name, 1, no_local=True))
    with (
        watching(broker, name) as watcher,
        client(broker, name, None, clean=False, properties=kept()) as second,
    ):
        assert watcher.receive().payload == b"gone"
        assert nothing_comes(broker, second)
        assert first.expect(Disconnect).reason == Reason.SESSION_TAKEN_OVER
        second.disconnect()


def test_a_will_under_a_name_that_is_not_the_clients_is_refused(broker: Hosted, name: str) -> None:
    for version, reason in ((MQTT_3_1_1, 5), (MQTT_5, Reason.NOT_AUTHORIZED)):
        with Wire(broker.port, f"client-{name}", version) as wire:
            answer = wire.connect(will=Will("$SYS/broker/uptime", b"lies"))
            assert answer.reason == Reason.NOT_AUTHORIZED, reason
            assert wire.is_closed()


def test_a_refused_will_does_not_cost_the_client_its_connection(broker: Hosted, name: str) -> None:
    with client(broker, name, None) as first:
        with Wire(broker.port, f"client-{name}", MQTT_5) as second:
            assert second.connect(will=Will("$SYS/a", b"")).reason == Reason.NOT_AUTHORIZED
        assert first.settle() == []


def test_a_will_that_is_too_deep_or_too_large_is_refused(tmp_path: Path) -> None:
    many = Properties(user_properties=(("k", "v" * 60_000), ("k", "v" * 60_000)))
    cases = [
        (Will("/".join("a" * 129), b""), Reason.TOPIC_NAME_INVALID),
        (Will("a", b"x" * 1001), Reason.PACKET_TOO_LARGE),
        (Will("a", b"", properties=many), Reason.PACKET_TOO_LARGE),
    ]
    with Hosted(tmp_path, log__payload_bytes_max=1000) as broker:
        for will, reason in cases:
            with Wire(broker.port, "client", MQTT_5) as wire:
                assert wire.connect(will=will).reason == reason
        with Wire(broker.port, "client", MQTT_5) as wire:
            assert wire.connect(will=Will("a", b"x" * 1000)).reason == Reason.SUCCESS
            wire.disconnect()


@VERSIONS
def test_the_will_is_on_disk_before_the_client_is_told_that_it_is_connected(
    tmp_path: Path, version: int
) -> None:
    with Hosted(tmp_path) as broker:
        wire = Wire(broker.port, "client", version)
        wire.connect(will=Will("a", b"gone"))
        assert stored_wills(tmp_path) == ["a"]
        wire.disconnect()
        broker.wait_idle()
        assert stored_wills(tmp_path) == []


def test_a_client_gone_before_its_answer_leaves_one_will_and_no_row(
    broker: Hosted, name: str
) -> None:
    with watching(broker, name) as watcher:
        for _ in range(20):
            wire = Wire(broker.port, f"client-{name}", MQTT_5)
            wire.send_and_close(Connect(wire.client_id, will=Will(name, b"gone")))
        broker.wait_idle()
        with client(broker, name, None) as last:
            broker.wait_idle()
            assert last.settle() == []
        messages = watcher.settle()
        assert all(isinstance(one, Publish) and one.payload == b"gone" for one in messages)
        assert len(messages) <= 20
        assert broker.call(lambda: not broker.door.worlds["default"].wills._waiting)


def test_of_two_that_come_at_once_one_stays_and_has_its_will(broker: Hosted, name: str) -> None:
    with watching(broker, name) as watcher:
        rivals = [Wire(broker.port, f"client-{name}", MQTT_5) for _ in range(5)]
        for number, rival in enumerate(rivals):
            rival.send(Connect(rival.client_id, will=Will(name, b"%d" % number, 1)))
        broker.wait_idle()
        alive = [rival for rival in rivals if _is_alive(rival)]
        assert len(alive) == 1
        watcher.settle()
        number = rivals.index(alive[0])
        alive[0].close()
        assert watcher.receive().payload == b"%d" % number
        assert nothing_comes(broker, watcher)


def _is_alive(wire: Wire) -> bool:
    try:
        wire.expect(Connack)
        return wire.settle() == []
    except (EOFError, ConnectionError):
        return False


@VERSIONS
def test_a_broker_that_stops_publishes_wills_after_its_next_start(
    tmp_path: Path, version: int
) -> None:
    with Hosted(tmp_path) as broker:
        client = Wire(broker.port, "client", version)
        client.connect(will=Will("a", b"gone", 1))
        with Wire(broker.port, "reader", MQTT_5) as reader:
            reader.connect(clean=False, properties=kept())
            reader.subscribe("a", qos=1)
    client.close()
    assert stored_wills(tmp_path) == ["a"]
    with (
        Hosted(tmp_path, mqtt__will_grace_s=1) as broker,
        Wire(broker.port, "reader", MQTT_5) as reader,
    ):
        reader.connect(clean=False, properties=kept())
        assert reader.receive().payload == b"gone"
    assert stored_wills(tmp_path) == []


@VERSIONS
def test_a_client_back_within_the_grace_of_a_start_calls_its_will_off(
    tmp_path: Path, version: int
) -> None:
    with Hosted(tmp_path) as broker:
        client = Wire(broker.port, "client", version)
        client.connect(will=Will("a", b"gone", 1))
    client.close()
    with (
        Hosted(tmp_path, mqtt__will_grace_s=DELAY_S) as broker,
        watching(broker, "a") as watcher,
        Wire(broker.port, "client", version) as back,
    ):
        back.connect()
        broker.wait_past_us(DELAY_S * 1_500_000)
        assert nothing_comes(broker, watcher)
        back.disconnect()
    assert stored_wills(tmp_path) == []


def test_another_user_with_the_client_id_does_not_call_a_will_off(tmp_path: Path) -> None:
    add_users(tmp_path, alice="a secret", bob="another one")

    def log_in(port: int, user: str, password: bytes, will: Will | None = None) -> Wire:
        wire = Wire(port, "shared", MQTT_5)
        wire.send(Connect("shared", will=will, username=user, password=password))
        assert wire.expect(Connack).reason == Reason.SUCCESS
        return wire

    with Hosted(tmp_path) as broker:
        alice = log_in(broker.port, "alice", b"a secret", Will("a", b"gone", 1, True))
    alice.close()
    with (
        Hosted(tmp_path, mqtt__will_grace_s=DELAY_S) as broker,
        log_in(broker.port, "bob", b"another one") as other,
    ):
        other.subscribe("a")
        assert other.receive().payload == b"gone"
