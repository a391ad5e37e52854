"""Does a bridge of Mosquitto, told nothing but an address and topics, join the two brokers?"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1
from penstock.mqtt.packets import Connect, Publish
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import WAIT_S, Wire
from tests.peers.mosquitto.mosquitto_server import Mosquitto

SETUPS = {
    "defaults": "",
    "3.1": "bridge_protocol_version mqttv31\n",
    "5": "bridge_protocol_version mqttv50\n",
}
CLIENT_ID = f"{socket.gethostname()}.plant"  # as a bridge calls itself by default
STATE = f"$SYS/broker/connection/{CLIENT_ID}/state"
BACK_S = 60  # for Mosquitto to try again, and for a keep alive


def bridge_to(port: int, more: str) -> str:
    """Settings of theirs for a bridge to ours."""
    return (
        "connection plant\n"
        f"address 127.0.0.1:{port}\n"
        "topic up/# out 1\n"
        "topic down/# in 1\n"
        "topic both/# both 1\n" + more
    )


@contextmanager
def joined(tmp_path: Path, served: Served, more: str = "") -> Iterator[Mosquitto]:
    """Theirs is running, and its bridge has said so to a subscriber of ours."""
    mosquitto = Mosquitto(tmp_path, bridge_to(served.port, more))
    mosquitto.start()
    try:
        with reader(served.port, "watch", STATE) as watch:
            wait_state(watch, b"1")
            yield mosquitto
    finally:
        mosquitto.kill()


def reader(port: int, client_id: str, *filters: str) -> Wire:
    wire = Wire(port, client_id, MQTT_3_1_1)
    wire.connect()
    wire.subscribe(*filters, qos=1)
    return wire


def wait_state(watch: Wire, state: bytes) -> None:
    """Until the bridge, or its will, says this."""
    watch._socket.settimeout(BACK_S)
    while watch.pick(Publish).payload != state:
        pass
    watch._socket.settimeout(WAIT_S)


def published(port: int, name: str, payload: bytes, *, retain: bool = False) -> None:
    with Wire(port, "", MQTT_3_1_1) as wire:
        wire.connect()
        wire.publish(name, payload, 1, retain=retain)


def assert_joined(here: int, there: int, number: bytes) -> None:
    """Messages of QoS 1 pass both ways, once each, and none goes in a circle."""
    with (
        reader(here, "reader", "up/#", "both/#") as ours,
        reader(there, "reader", "down/#", "both/#") as theirs,
    ):
        published(there, "up/a", b"up " + number)
        message = ours.receive()
        assert (message.name, message.payload, message.qos) == ("up/a", b"up " + number, 1)
        published(here, "down/a", b"down " + number)
        message = theirs.receive()
        assert (message.name, message.payload, message.qos) == ("down/a", b"down " + number, 1)
        for port in (here, there):
            published(port, "both/a", b"both")
            assert [one.receive().payload for one in (ours, theirs)] == [b"both"] * 2
        published(there, "up/last", b"")
        published(here, "down/last", b"")
        assert [one.receive().name for one in (ours, theirs)] == ["up/last", "down/last"]


@pytest.mark.parametrize("setup", SETUPS)
def test_a_bridge_carries_messages_both_ways(tmp_path: Path, setup: str) -> None:
    with Served(tmp_path / "data") as served, joined(tmp_path, served, SETUPS[setup]) as mosquitto:
        assert_joined(served.port, mosquitto.port, b"1")


def test_a_bridge_without_the_bit_is_let_in_as_any_client(tmp_path: Path) -> None:
    """Its own messages come back to it: nothing tells a broker that it is a bridge."""
    with (
        Served(tmp_path / "data") as served,
        joined(tmp_path, served, "try_private false\n") as mosquitto,
        reader(served.port, "reader", "up/#") as ours,
        reader(mosquitto.port, "reader", "down/#") as theirs,
    ):
        published(mosquitto.port, "up/a", b"up")
        published(served.port, "down/a", b"down")
        assert [one.receive().payload for one in (ours, theirs)] == [b"up", b"down"]


def test_retained_messages_stay_retained_on_the_other_side(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served, joined(tmp_path, served) as mosquitto:
        for source, target, name in (
            (served.port, mosquitto.port, "down/kept"),
            (mosquitto.port, served.port, "up/kept"),
        ):
            with reader(target, "early", name) as early:
                published(source, name, b"x", retain=True)
                assert early.receive().payload == b"x"
            with reader(target, "late", name) as late:
                assert late.receive().retain


@pytest.mark.slow
def test_a_bridge_comes_back_after_a_restart_of_our_broker_and_misses_nothing(
    tmp_path: Path,
) -> None:
    with (
        Served(tmp_path / "data") as served,
        joined(tmp_path, served, "restart_timeout 1\n") as mosquitto,
    ):
        assert_joined(served.port, mosquitto.port, b"1")
        served.stop()
        published(mosquitto.port, "up/meanwhile", b"while we were away")
        served.start()
        with reader(served.port, "again", STATE, "up/#") as ours:
            ours._socket.settimeout(BACK_S)
            said = {(one.name, one.payload) for one in (ours.receive(), ours.receive())}
            assert said == {(STATE, b"1"), ("up/meanwhile", b"while we were away")}
        assert_joined(served.port, mosquitto.port, b"2")


def test_a_bridge_that_is_killed_is_said_to_be_gone_and_gets_what_it_missed(
    tmp_path: Path,
) -> None:
    with Served(tmp_path / "data") as served, joined(tmp_path, served) as mosquitto:
        with reader(served.port, "watch2", STATE) as watch:
            wait_state(watch, b"1")
            mosquitto.kill()
            wait_state(watch, b"0")
            published(served.port, "down/meanwhile", b"while it was away", retain=True)
            mosquitto.start()
            wait_state(watch, b"1")
        while True:
            try:
                theirs = reader(mosquitto.port, "late", "down/#")
                break
            except ConnectionError:
                continue
        with theirs:
            assert theirs.receive().payload == b"while it was away"


def test_a_bridge_logs_in(tmp_path: Path) -> None:
    add_users(tmp_path / "data", plant="secret")
    with Served(tmp_path / "data") as served:
        login = "remote_username plant\nremote_password secret\n"
        mosquitto = Mosquitto(tmp_path, bridge_to(served.port, login))
        mosquitto.start()
        try:
            with Wire(served.port, "watch", MQTT_3_1_1) as watch:
                watch.send(
                    Connect("watch", username="plant", password=b"secret", version=MQTT_3_1_1)
                )
                watch.next()
                watch.subscribe(STATE, qos=1)
                wait_state(watch, b"1")
        finally:
            mosquitto.kill()
