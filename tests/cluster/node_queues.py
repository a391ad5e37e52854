"""Requests to the queues of several nodes."""

from __future__ import annotations

import http.client
import json
from typing import Any

from penstock.broker.queue.readers import SLOTS, slot_of
from tests.cluster.node_world import NodeWorld
from tests.waiting import wait_until


class Queues:
    """Requests to the nodes of a world, over TCP."""

    def __init__(self, world: NodeWorld) -> None:
        self.world = world

    def ask(
        self,
        at: int,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Status and body of an answer."""
        target = http.client.HTTPConnection("127.0.0.1", self.world[at].http_port, timeout=60)
        data = None if body is None else json.dumps(body)
        told = {"content-type": "application/json", **(headers or {})}
        try:
            target.request(method, path, data, told)
            answer = target.getresponse()
            text = answer.read()
        finally:
            target.close()
        return answer.status, json.loads(text) if text else None

    def done(self, at: int, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.ask(at, method, path, body)
        assert status < 300, (at, method, path, status, answer)
        return answer

    def patient(self, at: int, method: str, path: str, body: Any = None) -> Any:
        """As `done`; asks again while the node that has to answer is replaced."""
        for _ in range(30):
            status, answer = self.ask(at, method, path, body)
            if status < 300:
                return answer
            assert status in (502, 503), (status, answer)
        raise AssertionError("nobody answers")

    def owners(self) -> list[int]:
        """The nodes that have the slots of the default tenant, in the order of the slots."""
        schema = self.world.schema
        rows = self.world.postgres.fetch(
            f"select c.name, n.name from {schema}.claims c"
            f" join {schema}.nodes n on n.inc = c.owner_inc"
            " where c.kind = 'readers' and c.tenant = 'default'"
        )
        found = {int(slot): int(name.removeprefix("n")) for slot, name in rows}
        return [found.get(slot, -1) for slot in range(SLOTS)]

    def owner(self, topic: str) -> int:
        """The node that has the consumers and groups of a topic."""
        return self.owners()[slot_of(topic)]

    def wait_spread(self) -> None:
        """Until both nodes serve as many slots."""
        wait_until(lambda: sorted(self.owners()) == [0] * (SLOTS // 2) + [1] * (SLOTS // 2))

    @property
    def secret(self) -> bytes:
        rows = self.world.postgres.fetch(
            f"select value from {self.world.schema}.cluster where name = 'secret'"
        )
        return bytes.fromhex(rows[0][0])

    def inc(self, at: int) -> int:
        nodes = self.world.ask(at, "/v1/nodes")["nodes"]
        return next(int(one["incarnation"]) for one in nodes if one["is_self"])

    def url(self, at: int) -> str:
        return f"http://127.0.0.1:{self.world[at].http_port}"

    def publish(self, at: int, topic: str, payloads: list[str]) -> None:
        body = [{"name": f"{topic}/{text}", "payload": text} for text in payloads]
        self.done(at, "POST", f"/v1/topics/{topic}/records", body)

    def stored(self, topic: str) -> list[str]:
        """All payloads of a topic, as a node reads them from Kafka."""
        found = self.done(0, "GET", f"/v1/topics/{topic}/records?limit=10000")["records"]
        return [one["payload"] for one in found]

    def ready(self, topic: str) -> None:
        """Make a topic, and wait until both nodes know it."""
        self.done(1, "PUT", f"/v1/topics/{topic}", {})
        for at in (0, 1):
            wait_until(lambda at=at: self.ask(at, "GET", f"/v1/topics/{topic}")[0] == 200)
