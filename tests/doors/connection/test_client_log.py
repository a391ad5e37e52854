"""What operators learn of clients: is each event logged once, at its level, and counted?"""

from __future__ import annotations

import base64
import io
import json
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.limited_log import WARNINGS_MAX
from penstock.cli.server.log_output import JsonFormatter
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Auth, Connack, Connect, Disconnect, Publish
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.certificates import Authority
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Asking
from tests.http.framed import Framed

SECRET = "a password that nobody may read"


class Watched:
    """A broker, and what it logs."""

    def __init__(self, broker: Hosted, output: io.StringIO) -> None:
        self.broker = broker
        self._output = output

    def text(self) -> str:
        return self.broker.call(self._output.getvalue)

    def lines(self, event: str) -> list[dict[str, Any]]:
        """All lines of an event up to now."""
        shown = [json.loads(line) for line in self.text().splitlines()]
        return [line for line in shown if line["event"] == event]

    def count(self, name: str) -> int:
        return self.broker.call(lambda: self.broker.exchange.engine.metrics.refused[name])

    def violations(self, protocol: str) -> int:
        return self.broker.call(lambda: self.broker.exchange.engine.metrics.violations[protocol])


@pytest.fixture
def watched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A broker with the user alice, and TLS."""
    authority = Authority(tmp_path)
    cert, key = authority.sign("server")
    add_users(tmp_path / "data", alice=SECRET)
    settings = getattr(request, "param", {})
    files = {"mqtt__tls_cert": str(cert), "mqtt__tls_key": str(key)}
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("penstock")
    logger.addHandler(handler)
    logger.setLevel("INFO")
    try:
        tls = {"mqtt__tls_listen": "127.0.0.1:0", **files}
        with Hosted(tmp_path / "data", **tls, **settings) as broker:
            yield Watched(broker, output)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert SECRET not in output.getvalue()


def client(watched: Watched, client_id: str, version: int = MQTT_5) -> Wire:
    wire = Wire(watched.broker.port, client_id, version)
    password = SECRET.encode()
    wire.send(Connect(client_id, version=version, username="alice", password=password))
    assert wire.expect(Connack).reason == Reason.SUCCESS
    return wire


def end_of(watched: Watched, client_id: str) -> str:
    (line,) = [one for one in watched.lines("client disconnected") if one["client"] == client_id]
    assert line["level"] == "info"
    return str(line["reason"])


def test_a_client_is_logged_when_it_connects_and_why_it_leaves(watched: Watched) -> None:
    with client(watched, "polite") as wire:
        (line,) = watched.lines("client connected")
        assert (line["client"], line["user"], line["level"]) == ("polite", "alice", "info")
        assert line["peer"] == f"127.0.0.1:{wire._socket.getsockname()[1]}"
        assert (line["version"], line["resumes"]) == (5, False)
        wire.disconnect()
    assert end_of(watched, "polite") == "the client disconnected"
    with client(watched, "taken") as first, client(watched, "taken"):
        assert first.expect(Disconnect).reason == Reason.SESSION_TAKEN_OVER
        assert "another client connected with the same client id" in end_of(watched, "taken")
    client(watched, "rude").close()
    watched.broker.wait_idle()
    with client(watched, "witness") as witness:
        witness.settle()
    assert end_of(watched, "rude") == "the connection was closed without DISCONNECT"


def test_wrong_logins_are_counted_and_logged_without_the_password(watched: Watched) -> None:
    with Wire(watched.broker.port, "guess", MQTT_5) as wire:
        wire.send(
            Connect("guess", version=MQTT_5, username="alice", password=b"wrong " + SECRET.encode())
        )
        assert wire.expect(Connack).reason == Reason.BAD_USER_NAME_OR_PASSWORD
    (line,) = watched.lines("login refused")
    assert (line["user"], line["client"], line["level"]) == ("alice", "guess", "warning")
    assert line["peer"].startswith("127.0.0.1:")
    with Asking(watched.broker.ports["http"]) as asking:
        assert asking.ask("GET", "/metrics", Authorization="Bearer psk_wrong").status == 401
        assert asking.ask("GET", "/metrics", Authorization="Basic ???").status == 401
        assert asking.ask("GET", "/metrics").status == 401
    assert [one["level"] for one in watched.lines("login refused")] == ["warning"] * 3
    assert [one["level"] for one in watched.lines("login needed")] == ["info"]
    assert (watched.count("login"), watched.count("anonymous")) == (3, 1)
    assert "psk_wrong" not in watched.text()


def test_refused_clients_are_counted_and_logged(watched: Watched) -> None:
    properties = Properties(authentication_method="SCRAM")
    with Wire(watched.broker.port, "scram", MQTT_5) as wire:
        wire.send(Connect("scram", version=MQTT_5, properties=properties))
        assert wire.expect(Connack).reason == Reason.BAD_AUTHENTICATION_METHOD
    (line,) = watched.lines("client refused")
    assert (line["client"], line["level"]) == ("scram", "warning")
    assert watched.count("authentication") == 1
    with Asking(watched.broker.ports["http"]) as asking:
        assert asking.ask("GET", "/healthz", Origin="http://other.example").status == 403
    (line,) = watched.lines("request refused")
    assert "http://other.example" in line["reason"]
    assert watched.count("page") == 1


@pytest.mark.parametrize(
    "watched", [{"mqtt__connections_max": 1, "mqtt__connect_timeout": "1s"}], indirect=True
)
def test_too_many_and_too_slow_connections_are_counted_and_logged(watched: Watched) -> None:
    with socket.create_connection(("127.0.0.1", watched.broker.port)) as slow:
        with Wire(watched.broker.port, "late") as wire:
            assert wire.is_closed()
        (line,) = watched.lines("connection refused")
        assert line["level"] == "warning" and watched.count("connections") == 1
        assert slow.recv(1) == b""
    (line,) = watched.lines("connect timeout")
    assert line["level"] == "info" and watched.count("connect_timeout") == 1


def test_failed_handshakes_are_counted_and_logged_with_the_peer(watched: Watched) -> None:
    with socket.create_connection(("127.0.0.1", watched.broker.ports["mqtts"])) as sock:
        peer = f"127.0.0.1:{sock.getsockname()[1]}"
        sock.sendall(b"\x10\x0c this is no TLS at all")
        while sock.recv(4096):
            pass
    context = ssl.create_default_context()  # does not know who signed the certificate
    with (
        socket.create_connection(("127.0.0.1", watched.broker.ports["mqtts"])) as sock,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(sock, server_hostname="localhost")
    while watched.count("handshake") < 2:
        pass
    lines = watched.lines("handshake failed")
    assert [line["level"] for line in lines] == ["warning"] * 2
    assert lines[0]["peer"] == peer and all(line["problem"] for line in lines)


def test_protocol_violations_are_counted_and_logged_with_the_peer(watched: Watched) -> None:
    with Wire(watched.broker.port, "noise") as wire:
        wire.send_bytes(b"\xf0\x00")
        assert wire.is_closed()
    with client(watched, "auth") as wire:
        wire.send(Auth())
        assert wire.expect(Disconnect).reason == Reason.PROTOCOL_ERROR
    lines = watched.lines("protocol violation")
    assert [line["client"] for line in lines] == ["", "auth"]
    assert all(line["peer"].startswith("127.0.0.1:") for line in lines)
    assert watched.violations("mqtt") == 2
    with Asking(watched.broker.ports["http"]) as asking:
        assert asking.send(b"GET / HTTP/1.1\r\nbad header\r\n\r\n").answer().status == 400
    assert watched.violations("http") == 1
    framed = Framed(watched.broker.ports["http"])
    framed.socket.socket.sendall(b"\x82\x01x")  # without a mask
    assert framed.recv(1) == b""
    assert watched.violations("websocket") == 1
    assert len(watched.lines("protocol violation")) == 4


def test_a_name_with_control_characters_and_a_long_one_are_escaped_and_cut(
    watched: Watched,
) -> None:
    nasty = "\x1b[2J\n{" + "x" * 60_000
    with Wire(watched.broker.port, nasty, MQTT_5) as wire:
        wire.send(Connect(nasty, version=MQTT_5, properties=Properties(authentication_method="x")))
        wire.expect(Connack)
    (line,) = watched.lines("client refused")
    assert len(line["client"]) < 1000
    assert "\x1b" not in watched.text()


def test_a_flood_of_violations_is_cut_and_all_of_it_is_counted(watched: Watched) -> None:
    for _ in range(3 * WARNINGS_MAX):
        with Wire(watched.broker.port, "noise") as wire:
            wire.send_bytes(b"\xf0\x00")
            assert wire.is_closed()
    assert watched.violations("mqtt") == 3 * WARNINGS_MAX
    assert len(watched.lines("protocol violation")) == WARNINGS_MAX
    watched.broker.call(lambda: watched.broker.door._log.close())
    *_, last = watched.lines("protocol violation")
    assert last["suppressed"] == 2 * WARNINGS_MAX


def test_messages_and_expected_refusals_are_not_logged(watched: Watched) -> None:
    with client(watched, "busy", MQTT_3_1_1) as wire:
        wire.subscribe("a/#", qos=1)
        before = watched.text()
        for number in range(50):
            wire.publish("a/b", b"%d" % number, 1)
            assert wire.receive().payload == b"%d" % number
        wire.send(Publish("$SYS/x", b"not allowed", 0))
        wire.settle()
        with Asking(watched.broker.ports["http"]) as asking:
            login = "Basic " + base64.b64encode(f"alice:{SECRET}".encode()).decode()
            for _ in range(2):  # the second time it exists: 500, as the seed has it
                asking.ask("POST", "/topics", {"topic_name": "jobs"}, Authorization=login)
            assert asking.ask("GET", "/v1/topics/none", Authorization=login).status == 404
        assert watched.text() == before


def test_logging_leaves_no_trace_when_it_is_off(watched: Watched) -> None:
    logging.getLogger("penstock").setLevel("ERROR")
    with client(watched, "silent"), Wire(watched.broker.port, "noise") as wire:
        wire.send_bytes(b"\xf0\x00")
        assert wire.is_closed()
    assert watched.lines("client connected") == watched.lines("protocol violation") == []
    assert watched.violations("mqtt") == 1


def test_a_process_that_breaks_a_rule_of_the_bus_is_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "bus"
    with Hosted(tmp_path / "data", bus__path=str(path)) as broker:
        with socket.socket(socket.AF_UNIX) as process:
            process.connect(str(path))
            process.sendall(b"\xff" * 64)
            assert process.recv(1) == b""
        metrics = broker.exchange.engine.metrics
        assert broker.call(lambda: metrics.violations["bus"]) == 1
    assert "a process broke a rule of the bus" in caplog.text
