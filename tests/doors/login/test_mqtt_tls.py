"""TLS: the same conversation, encrypted; certificates as logins; and clients that stall."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.doors.mqtt.receive.publishing import RECEIVE_MAX
from penstock.log.files.directory import read_holder
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect, Puback, Publish
from penstock.mqtt.reasons import Reason
from tests.doors.certificates import Authority
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import WAIT_S, Wire

MIB = 1 << 20


class TlsWire(Wire):
    """A client that does the handshake first."""

    def __init__(self, port: int, context: ssl.SSLContext, client_id: str = "") -> None:
        super().__init__(port, client_id, MQTT_5)
        self._socket = context.wrap_socket(self._socket, server_hostname="localhost")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def flags(authority: Authority) -> tuple[str, ...]:
    cert, key = authority.sign("server")
    return ("--mqtts", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key))


@pytest.fixture
def broker(tmp_path: Path, flags: tuple[str, ...]) -> Iterator[Served]:
    with Served(tmp_path, *flags) as served:
        yield served


def client(authority: Authority, *chain: Path) -> ssl.SSLContext:
    """A context that trusts the authority and shows this certificate, if any."""
    context = ssl.create_default_context(cafile=str(authority.cert))
    if chain:
        context.load_cert_chain(*chain)
    return context


def tls_port(broker: Served) -> int:
    addresses = (read_holder(broker.data) or {})["addresses"]
    return next(int(one.rsplit(":", 1)[1]) for one in addresses if one.startswith("mqtts://"))


def connect(wire: Wire, user: str | None = None, password: bytes | None = None) -> Reason:
    wire.send(Connect(wire.client_id, username=user, password=password))
    return wire.expect(Connack).reason


def test_messages_of_every_size_pass_both_ways(broker: Served, authority: Authority) -> None:
    with TlsWire(tls_port(broker), client(authority)) as wire, Wire(broker.port) as plain:
        assert connect(wire) == Reason.SUCCESS
        plain.connect()
        for each in (wire, plain):
            each.subscribe("a", qos=1)
        for size in (0, 1, 1000, 300_000, 3 * MIB):
            payload = bytes([size % 251]) * size
            wire.send(Publish("a", payload, 1, packet_id=9))
            wire.pick(Puback)
            for each in (wire, plain):
                message = each.pick(Publish)
                each.acknowledge(message)
                assert message.payload == payload


def test_more_than_is_taken_at_once_arrives_whole_and_is_acknowledged_in_order(
    broker: Served, authority: Authority
) -> None:
    count = RECEIVE_MAX
    with TlsWire(tls_port(broker), client(authority)) as wire:
        connect(wire)
        ids = list(range(1, count + 1))
        wire.send(*[Publish("a", bytes(1000), 1, packet_id=one) for one in ids])
        assert [wire.expect(Puback).packet_id for _ in range(count)] == ids


def test_a_reader_that_lags_behind_gets_everything_in_order(
    broker: Served, authority: Authority
) -> None:
    count = 60
    with TlsWire(tls_port(broker), client(authority)) as reader, Wire(broker.port) as publisher:
        connect(reader)
        reader.subscribe("a", qos=1)
        publisher.connect()
        for number in range(count):
            publisher.publish("a", b"%d " % number + bytes(MIB // 4), 1)
        got = [int(reader.receive().payload.split()[0]) for _ in range(count)]
        assert got == list(range(count))


def rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def test_a_reader_that_never_reads_does_not_grow_the_broker(
    broker: Served, authority: Authority
) -> None:
    with TlsWire(tls_port(broker), client(authority)) as reader, Wire(broker.port) as publisher:
        connect(reader)
        reader.subscribe("a")
        publisher.connect()

        def publish_mib(count: int) -> None:
            for _ in range(count * 16):
                publisher.send(Publish("a", bytes(MIB // 16)))
            publisher.publish("b", b"", 1)

        publish_mib(32)  # now everything that is bounded is full
        before = rss_mib(broker.pid)
        publish_mib(128)
        assert rss_mib(broker.pid) < before + 64


def test_clients_that_never_finish_their_handshake_hold_up_nobody(
    broker: Served, authority: Authority
) -> None:
    port = tls_port(broker)
    stalled = [socket.create_connection(("127.0.0.1", port), WAIT_S) for _ in range(50)]
    for sock in stalled[25:]:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
    with TlsWire(port, client(authority)) as wire:
        assert connect(wire) == Reason.SUCCESS
        wire.publish("a", b"1", 1)
    for sock in stalled:
        sock.close()


def test_one_that_speaks_no_tls_is_closed(broker: Served, authority: Authority) -> None:
    port = tls_port(broker)
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as sock:
        sock.sendall(encode(Connect(""), MQTT_5))
        said = b"".join(iter(lambda: sock.recv(4096), b""))
        assert not said.startswith(b"\x20")  # at most an alert of TLS, no CONNACK
    with TlsWire(port, client(authority)) as good:
        assert connect(good) == Reason.SUCCESS


def test_a_stop_is_announced_over_tls_too(
    tmp_path: Path, flags: tuple[str, ...], authority: Authority
) -> None:
    broker = Served(tmp_path, *flags).start()
    with TlsWire(tls_port(broker), client(authority)) as wire:
        connect(wire)
        broker.stop()
        end = wire.expect(Disconnect)
        assert end.reason == Reason.SERVER_SHUTTING_DOWN
        assert "is stopping" in (end.properties.reason_string or "")


def test_a_password_logs_in_over_tls(
    tmp_path: Path, flags: tuple[str, ...], authority: Authority
) -> None:
    add_users(tmp_path, alice="wonder")
    with Served(tmp_path, *flags) as broker:
        for password, reason in (
            (b"wonder", Reason.SUCCESS),
            (b"wrong", Reason.BAD_USER_NAME_OR_PASSWORD),
        ):
            with TlsWire(tls_port(broker), client(authority)) as wire:
                assert connect(wire, "alice", password) == reason


def test_what_comes_behind_connect_waits_for_the_login_and_is_not_lost(
    tmp_path: Path, flags: tuple[str, ...], authority: Authority
) -> None:
    add_users(tmp_path, alice="wonder")
    with (
        Served(tmp_path, *flags) as broker,
        TlsWire(tls_port(broker), client(authority), "early") as wire,
    ):
        messages = [Publish("a", bytes(10_000), 1, packet_id=1 + n) for n in range(200)]
        wire.send(Connect("early", username="alice", password=b"wonder"), *messages)
        assert wire.expect(Connack).reason == Reason.SUCCESS
        assert [wire.expect(Puback).packet_id for _ in range(200)] == list(range(1, 201))


def test_required_certificates_are_logins_and_open_every_address(
    tmp_path: Path, flags: tuple[str, ...], authority: Authority
) -> None:
    required = ("--tls-client-ca", str(authority.cert), "--tls-client-certificates", "required")
    everywhere = [flag.replace("127.0.0.1:0", "0.0.0.0:0") for flag in flags]
    with Served(tmp_path, *everywhere, *required) as broker:
        port = tls_port(broker)
        pump = TlsWire(port, client(authority, *authority.sign("pump")), "same-id")
        assert connect(pump) == Reason.SUCCESS
        pump.publish("a", b"1", 1)
        valve = TlsWire(port, client(authority, *authority.sign("valve")), "same-id")
        assert connect(valve) == Reason.NOT_AUTHORIZED  # it is another user
        again = TlsWire(port, client(authority, *authority.sign("pump")), "same-id")
        assert connect(again, "whatever", b"is ignored") == Reason.SUCCESS
        unnamed = TlsWire(port, client(authority, *authority.sign("")))
        assert connect(unnamed) == Reason.NOT_AUTHORIZED  # not even anonymous


@pytest.mark.parametrize("kind", ["none", "stranger"])
def test_without_a_certificate_of_the_authority_there_is_no_conversation(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    flags: tuple[str, ...],
    authority: Authority,
    kind: str,
) -> None:
    required = ("--tls-client-ca", str(authority.cert), "--tls-client-certificates", "required")
    chain: tuple[Path, ...] = ()
    if kind == "stranger":
        chain = Authority(tmp_path_factory.mktemp("other"), "other").sign("pump")
    with Served(tmp_path, *flags, *required) as broker:
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            connect(TlsWire(tls_port(broker), client(authority, *chain)))
        with TlsWire(tls_port(broker), client(authority, *authority.sign("pump"))) as wire:
            assert connect(wire) == Reason.SUCCESS


def test_optional_certificates_stand_beside_passwords(
    tmp_path: Path, flags: tuple[str, ...], authority: Authority
) -> None:
    add_users(tmp_path, alice="wonder")
    with Served(tmp_path, *flags, "--tls-client-ca", str(authority.cert)) as broker:
        port = tls_port(broker)
        with TlsWire(port, client(authority, *authority.sign("alice"))) as wire:
            assert connect(wire) == Reason.SUCCESS
        with TlsWire(port, client(authority, *authority.sign("pump"))) as wire:
            assert connect(wire) == Reason.NOT_AUTHORIZED  # nobody's, and users exist
        with TlsWire(port, client(authority)) as wire:
            assert connect(wire) == Reason.NOT_AUTHORIZED
        with TlsWire(port, client(authority)) as wire:
            assert connect(wire, "alice", b"wonder") == Reason.SUCCESS
        with TlsWire(port, client(authority, *authority.sign(""))) as wire:
            assert connect(wire) == Reason.NOT_AUTHORIZED  # names nobody


@pytest.mark.parametrize(
    ("flags_given", "complaint"),
    [
        ([], "needs a certificate"),
        (["--tls-cert", "{none}"], "tls_cert '{none}' cannot be read"),
        (["--tls-cert", "{cert}"], "cannot be used"),
        (["--tls-cert", "{cert}", "--tls-key", "{other_key}"], "belong together"),
        (["--tls-cert", "{text}", "--tls-key", "{key}"], "must be PEM"),
        (
            ["--tls-cert", "{cert}", "--tls-key", "{key}", "--tls-client-ca", "{text}"],
            "tls_client_ca '{text}' cannot be used",
        ),
        (
            ["--tls-cert", "{cert}", "--tls-key", "{key}", "--tls-client-certificates", "required"],
            "set tls_client_ca",
        ),
    ],
)
def test_files_that_do_not_do_are_named_at_start(
    tmp_path: Path, authority: Authority, flags_given: list[str], complaint: str
) -> None:
    cert, key = authority.sign("server")
    _, other_key = authority.sign("other")
    text = tmp_path / "text"
    text.write_text("no certificate\n")
    paths = {
        "none": tmp_path / "none",
        "cert": cert,
        "key": key,
        "other_key": other_key,
        "text": text,
    }
    given = [flag.format(**paths) for flag in flags_given]
    for extra in ([], ["--check"]):
        serve = [sys.executable, "-m", "penstock.cli.main", "serve"]
        where = [
            "--data",
            str(tmp_path / "data"),
            "--mqtt",
            "off",
            "--http",
            "off",
            "--mqtts",
            "127.0.0.1:0",
        ]
        answer = subprocess.run(
            [*serve, *where, *given, *extra],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert answer.returncode == 1
        assert complaint.format(**paths) in answer.stderr
