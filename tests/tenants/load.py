"""Load of several tenants with the same users, client ids, names and topics, over several kills."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from penstock.log.files.directory import SOCKET_NAME
from penstock.model import unix_socket
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect, Publish
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.served import Served
from tests.doors.wire import Wire
from tests.http.asking import Asking

TENANTS = ("default", "acme", "globex")
TOPIC = "orders"
WAIT_S = 60.0


def login(tenant: str) -> tuple[str, str]:
    """The same user in every tenant, each with a password of its own."""
    return ("ann" if tenant == "default" else f"{tenant}/ann"), f"of {tenant}"


class TenantClients:
    """A publisher and a subscriber of one tenant; a payload says whose it is."""

    def __init__(self, broker: Served, tenant: str) -> None:
        self.broker = broker
        self.tenant = tenant
        self.acked: list[int] = []
        self.received: list[bytes] = []
        self._next_number = 0

    def _connect(self, client_id: str) -> Wire:
        user, password = login(self.tenant)
        wire = Wire(self.broker.port, client_id, MQTT_5)
        kept = Properties(session_expiry_interval=600)
        given = {"username": user, "password": password.encode(), "properties": kept}
        wire.send(Connect(client_id, False, 0, version=MQTT_5, **given))
        assert wire.expect(Connack).reason == Reason.SUCCESS
        return wire

    def subscribe(self) -> None:
        with self._connect("reader") as wire:
            wire.subscribe(f"{TOPIC}/#", qos=1)

    def publish(self) -> None:
        """Until the broker is killed."""
        with suppress(OSError, EOFError), self._connect("writer") as wire:
            while True:
                number = self._next_number
                self._next_number += 1
                payload = f"{self.tenant} {number}".encode()
                wire.publish(f"{TOPIC}/1", payload, 1, retain=number % 7 == 0)
                self.acked.append(number)

    def receive(self) -> None:
        """Until the broker is killed, or the last message has come."""
        with suppress(OSError, EOFError), self._connect("reader") as wire:
            while not self.received or not self.received[-1].endswith(b" last"):
                message = wire.expect(Publish)
                wire.acknowledge(message)
                self.received.append(message.payload)

    def stored(self) -> list[bytes]:
        """The whole topic, as the tenant's user reads it over HTTP."""
        pair = base64.b64encode(":".join(login(self.tenant)).encode()).decode()
        found: list[bytes] = []
        with Asking(self.broker.http_port) as asking:
            while True:
                path = f"/v1/topics/{TOPIC}/records?from={len(found)}&limit=1000"
                answer = asking.ask("GET", path, Authorization=f"Basic {pair}")
                records = answer.json["records"]
                if not records:
                    return found
                found += [record["payload"].encode() for record in records]

    def retained(self) -> bytes:
        with self._connect("looker") as wire:
            wire.subscribe(f"{TOPIC}/1", qos=0)
            return wire.expect(Publish).payload

    def finish(self) -> None:
        """A last message reaches the subscriber, which has everything before it."""
        thread = threading.Thread(target=self.receive, daemon=True)
        thread.start()
        with self._connect("writer") as wire:
            wire.publish(f"{TOPIC}/1", f"{self.tenant} last".encode(), 1)
        thread.join(WAIT_S)
        assert not thread.is_alive()

    def problems(self) -> list[str]:
        """Everything that was lost, or that belongs to another tenant."""
        found = []
        acked = {f"{self.tenant} {number}".encode() for number in self.acked}
        seen = {"stored": self.stored(), "received": self.received, "retained": [self.retained()]}
        for what, payloads in seen.items():
            foreign = [one for one in payloads if not one.startswith(f"{self.tenant} ".encode())]
            found += [f"{self.tenant}: {what} {one!r} of another tenant" for one in foreign]
        for what in ("stored", "received"):
            lost = acked - set(seen[what])
            found += [f"{self.tenant}: {one!r} was acknowledged and not {what}" for one in lost]
        return found


def run_kills(broker: Served, rounds: int) -> list[TenantClients]:
    """Publish and receive in all tenants, killing the broker under load; the clients, finished."""
    broker.start()
    clients = [TenantClients(broker, tenant) for tenant in TENANTS]
    with Asking(0, unix_socket.connect(broker.data / SOCKET_NAME, WAIT_S)) as operator:
        for one in clients:
            if one.tenant != "default":
                assert operator.ask("PUT", f"/v1/tenants/{one.tenant}", {}).status == 201
            password = {"password": login(one.tenant)[1]}
            for path, body in (("/v1/users/ann", password), (f"/v1/topics/{TOPIC}", {})):
                answer = operator.ask("PUT", path, body, Penstock_Tenant=one.tenant)
                assert answer.status == 201
    for one in clients:
        one.subscribe()
    for _ in range(rounds):
        before = [len(one.acked) for one in clients]
        threads = [
            threading.Thread(target=work, daemon=True)
            for one in clients
            for work in (one.publish, one.receive)
        ]
        for thread in threads:
            thread.start()
        while any(len(one.acked) < count + 50 for one, count in zip(clients, before, strict=True)):
            threads[0].join(0.01)
        broker.kill()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        broker.start()
    for one in clients:
        one.finish()
    return clients


def verify(data: Path, tenant: str, env: dict[str, str]) -> int:
    """`penstock log verify` of a tenant finds nothing wrong; one past the topic's last record."""
    command = [sys.executable, "-m", "penstock.cli.main", "log", "verify", "--json"]
    command += ["--tenant", tenant, "--at", str(data)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    return sum(one["end_offset"] for one in told["logs"] if one["topic"] == TOPIC)
