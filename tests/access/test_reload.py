"""Do SIGHUP and `penstock reload` read every file again, and does every connection stay?"""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.mqtt.packets import Connack, Connect, Disconnect
from penstock.mqtt.reasons import Reason
from tests.doors.certificates import Authority
from tests.doors.login.test_mqtt_tls import TlsWire
from tests.doors.served import Served
from tests.doors.tokens import AUDIENCE, ISSUER, Issuer
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import WAIT_S, Asking
from tests.waiting import wait_until

SETTINGS = """
[log_output]
level = "{level}"
[mqtt]
tls_listen = "127.0.0.1:0"
tls_cert = "{cert}"
tls_key = "{key}"
tls_client_ca = "{authority}"
tls_crl = "{crl}"
[access]
jwt_keys = "{keys}"
jwt_issuer = "{issuer}"
jwt_audience = "{audience}"
[[rules]]
rule = "{rule}"
"""


class Files:
    """Everything that a broker may read again, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.issuer = Issuer(directory)
        self.issuer.write("RS256")
        self.crl = self.authority.revoke()
        self.config = directory / "penstock.toml"
        self.write("error", "deny publish a/#")

    def write(self, level: str, rule: str) -> None:
        """A new certificate for the server, and these settings."""
        cert, key = self.authority.sign("server")
        self.config.write_text(
            SETTINGS.format(
                level=level,
                rule=rule,
                cert=cert,
                key=key,
                authority=self.authority.cert,
                crl=self.crl,
                keys=self.issuer.file,
                issuer=ISSUER,
                audience=AUDIENCE,
            )
        )

    def context(self, *chain: Path) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.cert))
        if chain:
            context.load_cert_chain(*chain)
        return context


def connect(wire: Wire, client_id: str) -> Wire:
    wire.send(Connect(client_id))
    assert wire.expect(Connack).reason == Reason.SUCCESS
    return wire


def shown_certificate(broker: Served, files: Files) -> bytes:
    with TlsWire(broker.ports["mqtts"], files.context()) as wire:
        assert isinstance(wire._socket, ssl.SSLSocket)
        shown = wire._socket.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def reload(broker: Served, way: str) -> None:
    if way == "signal":
        os.kill(broker.pid, signal.SIGHUP)
        return
    command = [sys.executable, "-m", "penstock.cli.main", "reload", "--at", str(broker.data)]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)


@pytest.mark.parametrize("way", ["signal", "command"])
def test_every_file_is_read_again_and_every_connection_stays(
    tmp_path: Path, way: str, capfd: pytest.CaptureFixture[str]
) -> None:
    files = Files(tmp_path)
    add_users(tmp_path / "data", alice="a", bob="b")
    alice, bob = files.authority.sign("alice"), files.authority.sign("bob")
    with (
        Served(tmp_path / "data", "--config", str(files.config)) as broker,
        TlsWire(broker.ports["mqtts"], files.context(*alice)) as kept,
        TlsWire(broker.ports["mqtts"], files.context(*bob)) as revoked,
        Asking(broker.http_port) as client,
    ):
        connect(kept, "kept")
        connect(revoked, "revoked")
        token = {"Authorization": f"Bearer {files.issuer.sign('eve', roles=['admin'])}"}
        assert client.ask("GET", "/v1/topics", **token).status == 401, "its key is not in the file"
        before = shown_certificate(broker, files)
        assert "connected" not in capfd.readouterr().err

        files.issuer.write("ES256")
        files.authority.revoke(bob[0])
        files.write("info", "deny publish b/#")
        reload(broker, way)

        path = "/v1/access/check?user=alice&action=publish&name="

        def is_allowed() -> bool:
            """The old rule is gone. The keys of tokens may be read again before the rules are."""
            answer = client.ask("GET", f"{path}a/x", **token)
            return answer.status == 200 and bool(answer.json["allowed"])

        wait_until(is_allowed)
        assert not client.ask("GET", f"{path}b/x", **token).json["allowed"]
        assert shown_certificate(broker, files) != before
        assert revoked.expect(Disconnect).reason == Reason.NOT_AUTHORIZED
        with TlsWire(broker.ports["mqtts"], files.context(*alice)) as newcomer:
            connect(newcomer, "newcomer")
        wait_until(lambda: "client 'newcomer' connected" in capfd.readouterr().err)
        kept.publish("a/x", b"still there", 1)
