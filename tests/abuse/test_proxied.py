"""Is a client behind a trusted proxy known by its own address, and nobody believed but the proxy?

127.0.0.9 is the proxy; the server log and the lines of logins tell whom the broker sees.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect
from tests.abuse.crowd import WAIT_S, Crowd, reach
from tests.core.test_proxies import header
from tests.doors.certificates import Authority
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Asking

PROXY, OTHER = "127.0.0.9", "127.0.0.3"
LOCAL = header(0x20, 0x00, b"")


def speaks_for(client: str, port: int = 4711) -> bytes:
    address = ipaddress.ip_address(client)
    family = 0x11 if address.version == 4 else 0x21
    ports = port.to_bytes(2, "big") + bytes((0x22, 0xB3))
    return header(0x21, family, address.packed + bytes(len(address.packed)) + ports)


class Proxied:
    """A broker behind a proxy."""

    def __init__(self, served: Served, authority: Authority, log: Path) -> None:
        self.served = served
        self.authority = authority
        self._log = log

    def lines(self, text: str) -> list[str]:
        """Those that are written by now."""
        return [line for line in self._log.read_text().splitlines() if text in line]

    def line(self, *texts: str) -> str:
        """Waits for a line with all of these: another thread of the broker writes them."""
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            for line in self.lines(texts[0]):
                if all(text in line for text in texts):
                    return line
        raise AssertionError(f"no line has {texts}")


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Proxied]:
    data = tmp_path / "data"
    add_users(data, alice="wonder")
    authority = Authority(tmp_path)
    cert, key = authority.sign("broker")
    env = os.environ | {
        "PENSTOCK_SERVER__TRUSTED_PROXIES": PROXY,
        "PENSTOCK_MQTT__PROXY_PROTOCOL": "true",
    }
    tls = ("--mqtts", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key))
    log = tmp_path / "log"
    with log.open("wb") as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)  # what the broker inherits
        try:
            served = Served(data, *tls, env=env).start()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    with_log = Proxied(served, authority, log)
    yield with_log
    served.stop()


def log_in(wire: Wire, password: bytes = b"wonder") -> int:
    wire.send(Connect(wire.client_id, username="alice", password=password))
    return wire.expect(Connack).reason


@pytest.mark.parametrize("client", ["192.0.2.7", "2001:db8::17"])
@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
def test_a_client_behind_a_proxy_is_known_by_its_own_address(
    proxied: Proxied, scheme: str, client: str
) -> None:
    sock = reach(proxied.served.ports[scheme], PROXY)
    for byte in speaks_for(client):
        sock.sendall(bytes((byte,)))
    if scheme == "mqtts":
        context = ssl.create_default_context(cafile=proxied.authority.cert)
        sock = context.wrap_socket(sock, server_hostname="localhost")
    with Wire(0, "behind", MQTT_5, sock) as wire:
        assert log_in(wire) == 0
        shown = f"[{client}]:4711" if ":" in client else f"{client}:4711"
        assert proxied.line("client 'behind' connected", shown)


def test_a_proxy_that_speaks_for_itself_counts_as_itself(proxied: Proxied) -> None:
    with Wire(0, "check", MQTT_5, reach(proxied.served.port, PROXY)) as wire:
        wire.send_bytes(LOCAL)
        assert log_in(wire) == 0
        assert proxied.line("client 'check' connected", PROXY)


def test_only_a_trusted_proxy_may_send_a_header_and_it_has_to(proxied: Proxied) -> None:
    with Wire(0, "liar", MQTT_5, reach(proxied.served.port, OTHER)) as wire:
        wire.send_bytes(speaks_for("192.0.2.7"))
        assert wire.is_closed()
    with Wire(0, "mute", MQTT_5, reach(proxied.served.port, PROXY)) as wire:
        wire.send(Connect("mute", username="alice", password=b"wonder"))
        assert wire.is_closed()
    assert proxied.line("trusted proxy 127.0.0.9") and not proxied.lines("192.0.2.7")
    with Wire(0, "direct", MQTT_5, reach(proxied.served.port, OTHER)) as wire:
        assert log_in(wire) == 0


def test_wrong_logins_behind_a_proxy_hold_up_only_their_own_address(proxied: Proxied) -> None:
    wrong = Connect("x", username="alice", password=b"wrong")
    with Crowd(PROXY) as crowd:
        crowd.join(proxied.served.port, 100, speaks_for("192.0.2.66"))
        wires = [Wire(0, "x", MQTT_5, sock) for sock in crowd.sockets]
        for wire in wires:
            wire.send(wrong)
        with Wire(0, "right", MQTT_5, reach(proxied.served.port, PROXY)) as right:
            right.send_bytes(speaks_for("192.0.2.7"))
            assert log_in(right) == 0
        assert crowd.count_open() > 50, "theirs wait"


def test_forwarded_counts_from_a_trusted_proxy_only(proxied: Proxied) -> None:
    wrong = "Basic " + base64.b64encode(b"alice:wrong").decode()
    for source, seen in ((PROXY, "192.0.2.7"), (OTHER, OTHER)):
        with Asking(0, reach(proxied.served.http_port, source)) as client:
            answer = client.ask(
                "GET",
                "/v1/topics",
                Authorization=wrong,
                Forwarded='for=1.2.3.4, for="192.0.2.7:80"',
            )
            assert answer.status == 401
        assert proxied.line("request for /v1/topics", f"from {seen} refused")
    right = "Basic " + base64.b64encode(b"alice:wonder").decode()
    with Asking(0, reach(proxied.served.http_port, OTHER)) as client:
        assert client.ask("GET", "/v1/topics", Authorization=right).status == 200


def test_proxies_are_not_trusted_while_everybody_would_be_let_in(tmp_path: Path) -> None:
    env = os.environ | {"PENSTOCK_SERVER__TRUSTED_PROXIES": PROXY}
    with pytest.raises(AssertionError, match="the broker ended with"):
        Served(tmp_path, env=env).start()
