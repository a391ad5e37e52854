"""Who gets a CONNACK of success, and what hears everybody else?"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import FAILURE, Reason
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import WAIT_S, Wire

VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With the users alice and bob."""
    data = tmp_path_factory.mktemp("users")
    add_users(data, alice="wonder", bob="builder")
    with Served(data) as served:
        yield served


def log_in(
    port: int, user: str | None, password: bytes | None, version: int = MQTT_5, client_id: str = ""
) -> tuple[Wire, Reason]:
    wire = Wire(port, client_id, version)
    wire.send(Connect(client_id, True, 0, None, user, password, version))
    return wire, wire.expect(Connack).reason


@VERSIONS
def test_without_users_this_machine_needs_no_login(tmp_path: Path, version: int) -> None:
    with Served(tmp_path) as broker:
        for user, password in ((None, None), ("anybody", b"anything")):
            wire, reason = log_in(broker.port, user, password, version)
            assert reason == Reason.SUCCESS
            wire.publish("a", b"1", 1)
            wire.close()


@VERSIONS
def test_a_right_password_opens_the_door_first_slowly_then_at_once(
    broker: Served, version: int
) -> None:
    for _ in range(3):
        wire, reason = log_in(broker.port, "alice", b"wonder", version)
        assert reason == Reason.SUCCESS
        wire.publish("a", b"1", 1)
        wire.disconnect()


@VERSIONS
@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", b"builder"), ("alice", None), ("ALICE", b"wonder"), ("carol", b"wonder"), ("", b"")],
)
def test_a_wrong_login_is_told_so_and_closed(
    broker: Served, version: int, user: str, password: bytes | None
) -> None:
    wire, reason = log_in(broker.port, user, password, version)
    assert reason == Reason.BAD_USER_NAME_OR_PASSWORD  # 0x86, or 4 before MQTT 5
    assert wire.is_closed()


@VERSIONS
def test_nobody_comes_in_without_a_login_once_a_user_exists(broker: Served, version: int) -> None:
    wire, reason = log_in(broker.port, None, None, version)
    assert reason == Reason.NOT_AUTHORIZED  # 0x87, or 5 before MQTT 5
    assert wire.is_closed()


def test_allow_anonymous_lets_them_in_beside_users_whose_passwords_still_count(
    tmp_path: Path,
) -> None:
    add_users(tmp_path, alice="wonder")
    with Served(tmp_path, "--allow-anonymous") as broker:
        assert log_in(broker.port, None, None)[1] == Reason.SUCCESS
        assert log_in(broker.port, "alice", b"wonder")[1] == Reason.SUCCESS
        assert log_in(broker.port, "alice", b"wrong")[1] == Reason.BAD_USER_NAME_OR_PASSWORD


@VERSIONS
@pytest.mark.parametrize("is_split", [False, True])
def test_what_comes_behind_connect_waits_for_the_login_and_is_not_lost(
    tmp_path: Path, version: int, is_split: bool
) -> None:
    add_users(tmp_path, alice="wonder")
    with Served(tmp_path) as broker:  # a new one: the password is not remembered
        wire = Wire(broker.port, "early", version)
        packets = [
            Connect("early", True, 0, None, "alice", b"wonder", version),
            Subscribe(1, (Subscription("a", 1),)),
            *[Publish("a", b"%d" % n, 1, packet_id=2 + n) for n in range(50)],
        ]
        if is_split:
            for byte in b"".join(encode(packet, version) for packet in packets):
                wire.send_bytes(bytes((byte,)))
        else:
            wire.send(*packets)
        assert wire.expect(Connack).reason == Reason.SUCCESS
        wire.expect(Suback)
        assert [wire.pick(Puback).packet_id for _ in range(50)] == list(range(2, 52))
        assert [wire.pick(Publish).payload for _ in range(50)] == [b"%d" % n for n in range(50)]


def test_a_message_sent_with_a_wrong_login_is_not_stored(broker: Served) -> None:
    reader, _ = log_in(broker.port, "bob", b"builder")
    reader.subscribe("secret/#", qos=1)
    wire = Wire(broker.port, "", MQTT_5)
    wire.send(
        Connect("", username="alice", password=b"guess"), Publish("secret/a", b"x", 1, packet_id=1)
    )
    assert wire.expect(Connack).reason == Reason.BAD_USER_NAME_OR_PASSWORD
    assert wire.is_closed()
    assert reader.settle() == []


def test_a_client_that_goes_away_while_it_logs_in_leaves_the_broker_well(broker: Served) -> None:
    for _ in range(20):
        wire = Wire(broker.port, "", MQTT_5)
        wire.send(Connect("", username="carol", password=b"x"))
        wire.close()
    assert log_in(broker.port, "alice", b"wonder")[1] == Reason.SUCCESS


@pytest.mark.parametrize(
    ("connect", "sentence"),
    [
        (Connect("c"), "a user name and password are needed"),
        (Connect("c", username="alice", password=b"builder"), "wrong user name or password"),
        (Connect("c", username="nobody", password=b"wonder"), "wrong user name or password"),
        (
            Connect("pump", username="bob", password=b"builder"),
            "client id 'pump' belongs to another user",
        ),
        (
            Connect("c", will=Will("$SYS/a", b""), username="bob", password=b"builder"),
            "a will for '$SYS/a' is not allowed",
        ),
        (
            Connect("c", will=Will("/" * 200, b""), username="bob", password=b"builder"),
            "more than 128 levels",
        ),
    ],
)
def test_a_refused_login_is_explained_in_a_sentence(
    broker: Served, connect: Connect, sentence: str
) -> None:
    alice, _ = log_in(broker.port, "alice", b"wonder", client_id="pump")
    with alice, Wire(broker.port, "", MQTT_5) as wire:
        wire.send(connect)
        answer = wire.expect(Connack)
        assert answer.reason >= FAILURE
        assert sentence in (answer.properties.reason_string or "")
        assert wire.is_closed()


def test_another_users_session_is_not_taken_over(broker: Served) -> None:
    alice, _ = log_in(broker.port, "alice", b"wonder", client_id="pump")
    bob, reason = log_in(broker.port, "bob", b"builder", client_id="pump")
    assert reason == Reason.NOT_AUTHORIZED and bob.is_closed()
    assert alice.settle() == []
    again, reason = log_in(broker.port, "alice", b"wonder", client_id="pump")
    assert reason == Reason.SUCCESS
    assert again.settle() == []


def test_another_users_session_is_not_taken_over_while_its_client_is_away(tmp_path: Path) -> None:
    add_users(tmp_path, alice="wonder", bob="builder")
    broker = Served(tmp_path).start()

    def come(user: str, password: bytes) -> tuple[Wire, Connack]:
        wire = Wire(broker.port, "pump", MQTT_5)
        kept = Properties(session_expiry_interval=3600)
        wire.send(Connect("pump", False, 0, None, user, password, MQTT_5, kept))
        return wire, wire.expect(Connack)

    alice, _ = come("alice", b"wonder")
    alice.subscribe("orders", qos=1)
    alice.disconnect()
    broker.kill()
    broker.start()
    bob, answer = come("bob", b"builder")
    assert answer.reason == Reason.NOT_AUTHORIZED and bob.is_closed()
    alice, answer = come("alice", b"wonder")
    assert answer.session_present
    broker.stop()


def test_guessing_from_one_address_does_not_keep_others_out(broker: Served) -> None:
    guess = encode(Connect("", username="alice", password=b"guess"), MQTT_5)
    guessers = []
    for _ in range(200):
        sock = socket.create_connection(
            ("127.0.0.1", broker.port), WAIT_S, source_address=("127.0.0.9", 0)
        )
        sock.sendall(guess)
        guessers.append(sock)
    for _ in range(3):
        wire, reason = log_in(broker.port, "bob", b"wrong")
        assert reason == Reason.BAD_USER_NAME_OR_PASSWORD
        wire.close()
    answered, _, _ = select.select(guessers, [], [], 0)
    assert len(answered) < 100
    for sock in guessers:
        sock.close()


def test_a_client_that_drips_its_connect_is_closed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_MQTT__CONNECT_TIMEOUT", "1s")
    with Served(tmp_path) as broker:
        sock = socket.create_connection(("127.0.0.1", broker.port), 0.2)
        end = b""
        for byte in encode(Connect("a" * 100), MQTT_5):
            try:
                sock.sendall(bytes((byte,)))
                end = sock.recv(1)
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("all of it was taken")
        assert end == b""
        sock.close()


@VERSIONS
def test_nobody_speaks_in_the_brokers_own_name(broker: Served, version: int) -> None:
    wire, _ = log_in(broker.port, "alice", b"wonder", version)
    wire.subscribe("$SYS/x")  # nothing the broker itself says
    wire.send(Publish("$SYS/x", b"0"))
    assert wire.settle() == []
    wire.send(Publish("$SYS/x", b"1", 1, packet_id=7), Publish("a", b"", 1, packet_id=8))
    if version == MQTT_5:
        assert wire.expect(Puback).reason == Reason.NOT_AUTHORIZED
        assert wire.expect(Puback).reason == Reason.SUCCESS
    else:
        assert wire.is_closed()


def test_a_long_keep_alive_is_shortened_for_those_who_can_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_MQTT__KEEP_ALIVE_S_MAX", "30")
    with Served(tmp_path) as broker:
        for asked_s, given_s in ((0, 30), (31, 30), (30, None), (5, None)):
            with Wire(broker.port, "", MQTT_5) as wire:
                answer = wire.connect(keep_alive_s=asked_s)
                assert answer.properties.server_keep_alive == given_s


def test_an_unknown_authentication_method_is_refused(broker: Served) -> None:
    with Wire(broker.port, "", MQTT_5) as wire:
        answer = wire.connect(properties=Properties(authentication_method="SCRAM"))
        assert answer.reason == Reason.BAD_AUTHENTICATION_METHOD


def serve(data: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """A server that is expected not to start."""
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--data", str(data)]
    command += ["--http", "off", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_an_open_address_is_refused_at_start_until_somebody_can_log_in(tmp_path: Path) -> None:
    flags = ("--mqtt", "0.0.0.0:0")
    answer = serve(tmp_path, *flags)
    assert answer.returncode == 1
    assert "0.0.0.0 would accept everybody" in answer.stderr
    with Served(tmp_path, *flags, "--allow-anonymous") as broker:
        assert log_in(broker.port, None, None)[1] == Reason.SUCCESS
    add_users(tmp_path, alice="wonder")
    with Served(tmp_path, *flags) as broker:
        assert log_in(broker.port, "alice", b"wonder")[1] == Reason.SUCCESS
        assert log_in(broker.port, None, None)[1] == Reason.NOT_AUTHORIZED


def test_an_address_in_use_is_named(broker: Served, tmp_path: Path) -> None:
    answer = serve(tmp_path, "--mqtt", f"127.0.0.1:{broker.port}")
    assert answer.returncode == 3
    assert f"cannot listen on 127.0.0.1:{broker.port}" in answer.stderr
    assert os.strerror(98) in answer.stderr
