"""Several real nodes on one real Kafka and one real PostgreSQL."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.log.files.directory import SOCKET_NAME
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect, Will
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.served import Served
from tests.doors.wire import Wire
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from tests.waiting import WAIT_S


class LocalConnection(http.client.HTTPConnection):
    """HTTP over a socket of the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self._path))


class Fighter(Wire):
    """A client that looks from time to time whether it was sent away."""

    is_connected = False
    _has_ended = False

    def has_ended(self) -> bool:
        while not self._has_ended:
            try:
                packet = self.poll(0.001)
            except (EOFError, ConnectionError):
                self._has_ended = True
                break
            if packet is None:
                break
            self.is_connected |= isinstance(packet, Connack)
            if isinstance(packet, Disconnect) or (
                isinstance(packet, Connack) and packet.reason != Reason.SUCCESS
            ):
                self._has_ended = True
        return self._has_ended


class NodeWorld:
    """Nodes of one cluster, each with a data directory of its own."""

    def __init__(
        self,
        kafka: KafkaServer,
        postgres: PostgresServer,
        folder: Path,
        count: int = 2,
        partitions: int = 2,
        *flags: str,
        replication: int = 1,
        lease_s: int = 3,
        own: dict[int, dict[str, str]] | None = None,
    ) -> None:
        """`own` are settings that only some nodes have, by their number."""
        self.schema = postgres.new_schema()
        self.postgres = postgres
        self.bootstrap = kafka.bootstrap
        self.prefix = kafka.new_prefix()
        env = {
            **os.environ,
            "PENSTOCK_LOG__BACKEND": "kafka",
            "PENSTOCK_KAFKA__BOOTSTRAP": self.bootstrap,
            "PENSTOCK_KAFKA__PREFIX": self.prefix,
            "PENSTOCK_KAFKA__PARTITIONS": str(partitions),
            "PENSTOCK_KAFKA__REPLICATION": str(replication),
            "PENSTOCK_CATALOG__URL": postgres.url,
            "PENSTOCK_CATALOG__SCHEMA": self.schema,
            "PENSTOCK_NODE__LEASE_S": str(lease_s),
            "PENSTOCK_MQTT__WILL_GRACE_S": "1",
        }
        self.nodes = []
        for at in range(count):
            named = {**env, "PENSTOCK_NODE__NAME": f"n{at}", **(own or {}).get(at, {})}
            self.nodes.append(Served(folder / f"node{at}", *flags, env=named))

    def __getitem__(self, at: int) -> Served:
        return self.nodes[at]

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node in self.nodes:
            node.__exit__(kind, error, trace)

    def ask(self, at: int, path: str, body: Any = None, method: str = "") -> Any:
        """What a node answers to an operator, over the socket in its data directory."""
        target = LocalConnection(self[at].data / SOCKET_NAME)
        data = None if body is None else json.dumps(body)
        headers = {"content-type": "application/json"}
        target.request(method or ("GET" if data is None else "POST"), path, data, headers)
        answer = target.getresponse()
        text = answer.read()
        target.close()
        assert answer.status < 300, (answer.status, text)
        return json.loads(text) if text else None

    def states(self, at: int) -> dict[str, str]:
        """The state of each node, by its name."""
        return {one["name"]: one["state"] for one in self.ask(at, "/v1/nodes")["nodes"]}

    def ready(self, at: int) -> bool:
        """Whether a node says that it can be given clients."""
        target = LocalConnection(self[at].data / SOCKET_NAME)
        target.request("GET", "/readyz")
        status = target.getresponse().status
        target.close()
        return status == 200

    def retained(self, at: int) -> list[str]:
        """The names with a retained message, as a node sees them."""
        return [one["name"] for one in self.ask(at, "/v1/retained")["retained"]]

    def begin_connect(self, at: int, client_id: str) -> Fighter:
        """A client that connects and may lose its session to another one at any time."""
        fighter = Fighter(self[at].port, client_id, MQTT_5)
        fighter.send(
            Connect(
                version=MQTT_5,
                client_id=client_id,
                clean_start=False,
                keep_alive_s=0,
                properties=Properties(session_expiry_interval=3600),
            )
        )
        return fighter

    def connect(
        self,
        at: int,
        client_id: str,
        *,
        is_clean: bool = False,
        expiry_s: int = 3600,
        will: Will | None = None,
        patience_s: float = WAIT_S,
    ) -> tuple[Wire, Connack]:
        """A client of MQTT 5 with a session on a node, which has so long for each answer."""
        wire = Wire(self[at].port, client_id, MQTT_5, patience_s=patience_s)
        properties = Properties(session_expiry_interval=expiry_s)
        wire.send(
            Connect(
                version=MQTT_5,
                client_id=client_id,
                clean_start=is_clean,
                keep_alive_s=0,
                properties=properties,
                will=will,
            )
        )
        return wire, wire.expect(Connack)

    def incarnation(self, at: int) -> int:
        """The newest one of a node."""
        ((found,),) = self.sql("select max(inc) from {}.nodes where name = $1", f"n{at}")
        return int(found)

    def state(self, inc: int) -> tuple[str, int | None]:
        """What the catalog says of an incarnation, and who recovers it."""
        ((state, recoverer),) = self.sql(
            "select state, recoverer from {}.nodes where inc = $1", inc
        )
        return state, recoverer

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Ask or tell the catalog something; `{}` stands for its schema."""
        return self.postgres.fetch(text.format(self.schema), *values)

    def freeze(self, at: int) -> None:
        os.kill(self[at].pid, signal.SIGSTOP)

    def thaw(self, at: int) -> None:
        os.kill(self[at].pid, signal.SIGCONT)
