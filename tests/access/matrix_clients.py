"""Every way to publish and to read that the access matrix tries, as somebody who logs in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from websockets.exceptions import ConnectionClosed

from penstock.broker.access import KEY_USER
from penstock.doors.http.v1.topics.page import ARROW
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscription,
)
from tests.access.readers import Login
from tests.access.rule_model import Policy, Spot, matches
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire
from tests.http.asking import Asking
from tests.http.events import Events, Frames
from tests.http.framed import open_websocket

DENIED: Final = (0x80, 0x87)  # SUBACK reasons, before MQTT 5 and in it
GONE: Final = (EOFError, ConnectionError)


class Record(NamedTuple):
    spot: Spot
    payload: str
    qos: int = 1


@dataclass
class Who:
    """A principal: a user of a tenant, and what it logs in with."""

    label: str
    tenant: str
    user: str
    login: Login
    is_alive: bool = True

    @property
    def is_key(self) -> bool:
        return self.login.user == KEY_USER

    def may(self, policy: Policy, action: str, spot: Spot, client_id: str = "") -> bool:
        return self.is_alive and policy.allows(self.user, action, spot, client_id)


def enter(broker: Hosted, login: Login, client_id: str, **more: Any) -> tuple[Wire, int]:
    """A client, and the reason of its CONNACK."""
    version = more.setdefault("version", MQTT_5)
    wire = Wire(broker.port, client_id, version)
    wire.send(Connect(client_id, username=login.user, password=login.secret.encode(), **more))
    return wire, wire.expect(Connack).reason


def granted(wire: Wire, filters: Sequence[str], qos: int = 1, share: str = "") -> list[str]:
    """Subscribe to all of them without what is retained; which were accepted."""
    wanted = [Subscription(share + one, qos, retain_handling=2) for one in filters]
    return accepted(filters, wire.subscribe(*wanted).reasons)


def accepted(filters: Sequence[str], reasons: Iterable[int]) -> list[str]:
    answers = dict(zip(filters, reasons, strict=True))
    assert all(one in (0, 1, 2, *DENIED) for one in answers.values()), answers
    return [filter for filter, reason in answers.items() if reason not in DENIED]


def collect(wire: Wire, expected: set[str], end: str = "") -> set[str]:
    """The payloads that have come, once those that are expected have and nothing is left."""
    got: set[str] = set()
    while not (expected | ({end} if end else set())) <= got:
        packet = wire.poll(10)
        if packet is None:
            break  # something is missing: the caller tells
        _take(wire, packet, got)
    for packet in wire.settle():
        _take(wire, packet, got)
    return got - {end}


def _take(wire: Wire, packet: object, got: set[str]) -> None:
    assert isinstance(packet, Publish), packet
    wire.acknowledge(packet)
    got.add(packet.payload.decode())


# Publishing over MQTT


def publish_mqtt_5(wire: Wire, records: Sequence[Record], *, retain: bool = False) -> set[str]:
    """All at once; the payloads that were accepted, as far as the broker says."""
    qos = records[0].qos
    ids = [wire.take_id() if qos else 0 for _ in records]
    for record, packet_id in zip(records, ids, strict=True):
        payload = record.payload.encode()
        wire.send(Publish(record.spot.name, payload, qos, retain, packet_id=packet_id))
    done = set()
    for record, packet_id in zip(records, ids, strict=True):
        if qos == 1 and wire.pick(Puback, packet_id).reason < 0x80:
            done.add(record.payload)
        if qos == 2 and wire.pick(Pubrec, packet_id).reason < 0x80:
            wire.send(Pubrel(packet_id))
            wire.pick(Pubcomp, packet_id)
            done.add(record.payload)
    wire.settle()
    return done


def publish_mqtt_3(broker: Hosted, who: Who, client_id: str, records: Sequence[Record]) -> None:
    """One after the other: a client that may not publish is cut off without a word."""
    wire: Wire | None = None
    for record in records:
        if wire is None:
            wire, reason = enter(broker, who.login, client_id, version=MQTT_3_1_1)
            assert reason == 0
        try:
            wire.publish(record.spot.name, record.payload.encode(), record.qos)
            wire.settle()
        except GONE:
            wire.close()
            wire = None
    if wire is not None:
        wire.disconnect()


# Reading that goes on over many moments


class Lasting(Protocol):
    """Reads from now on; `collect` gives what has come since the last time."""

    way: str
    who: Who
    action: str
    topic: str  # where END is stored for it

    def is_about(self, record: Record) -> bool:
        """Could it come here, if the rules allowed it?"""
        ...

    def expected(self, policy: Policy, records: Sequence[Record]) -> set[str]: ...

    def collect(self, expected: set[str], end: str) -> set[str]: ...

    def rest(self) -> set[str]:
        """What comes before the broker ends it."""
        ...

    def close(self) -> None: ...


class LiveMqtt:
    action = "receive"
    topic = "default"

    def __init__(
        self, broker: Hosted, who: Who, way: str, filters: Sequence[str], version: int = MQTT_5
    ) -> None:
        self.way = way
        self.who = who
        self.client_id = f"{who.label}-{way}"
        self.wire, reason = enter(broker, who.login, self.client_id, version=version)
        assert reason == 0
        assert self.wire.subscribe("end/#").reasons == (0,)
        share = f"$share/{who.label}/" if way == "share" else ""
        self._filters = filters
        self.granted = granted(self.wire, filters, share=share)

    def is_about(self, record: Record) -> bool:
        return any(matches(one, record.spot.name) for one in self._filters)

    def expected(self, policy: Policy, records: Sequence[Record]) -> set[str]:
        return may_receive(policy, self.who, self.client_id, self.granted, records)

    def collect(self, expected: set[str], end: str) -> set[str]:
        return collect(self.wire, expected, end)

    def rest(self) -> set[str]:
        got = set()
        try:
            while True:
                packet = self.wire.next()
                if isinstance(packet, Publish):
                    got.add(packet.payload.decode())
        except GONE:
            return got

    def close(self) -> None:
        self.wire.close()


def may_receive(
    policy: Policy, who: Who, client_id: str, filters: Sequence[str], records: Sequence[Record]
) -> set[str]:
    """What filters that were accepted once bring at this moment."""
    now = [one for one in filters if policy.allows_filter(who.user, one, client_id)]
    return {
        record.payload
        for record in records
        if any(matches(one, record.spot.name) for one in now)
        and who.may(policy, "receive", record.spot, client_id)
    }


class Stream:
    """Records of one topic, as events or in a WebSocket."""

    action = "read"

    def __init__(self, broker: Hosted, who: Who, way: str, topic: str) -> None:
        self.way, self.who, self.topic = way, who, topic
        path, port = f"/v1/topics/{topic}/stream", broker.ports["http"]
        self._events: Events | None = None
        self._frames: Frames | None = None
        if way == "sse":
            self._events = Events(port, path, Authorization=who.login.header)
            assert self._events.next().kind == "start"
        else:
            headers = {"Authorization": who.login.header}
            more = {"additional_headers": headers, "ping_interval": None}  # it is read rarely
            self._frames = Frames(open_websocket(port, path, **more))
            assert self._frames.next()["type"] == "start"

    def is_about(self, record: Record) -> bool:
        return record.spot.topic == self.topic

    def expected(self, policy: Policy, records: Sequence[Record]) -> set[str]:
        return may_read(policy, self.who, self.topic, records)

    def _next(self) -> dict[str, Any]:
        source = self._events or self._frames
        assert source is not None
        return source.records(1)[0]

    def collect(self, expected: set[str], end: str) -> set[str]:
        """What comes too late is noticed the next time."""
        got: set[str] = set()
        while end and end not in got:
            got.add(str(self._next()["payload"]))
        return got - {end}

    def rest(self) -> set[str]:
        got = set()
        try:
            while True:
                got.add(str(self._next()["payload"]))
        except (*GONE, ConnectionClosed):
            return got

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        if self._frames is not None:
            self._frames.socket.close()


def may_read(policy: Policy, who: Who, topic: str, records: Iterable[Record]) -> set[str]:
    return {
        record.payload
        for record in records
        if record.spot.topic == topic and who.may(policy, "read", record.spot)
    }


# Reading once over HTTP


class Asker:
    """Asks over one connection as anybody."""

    def __init__(self, broker: Hosted) -> None:
        self._client = Asking(broker.ports["http"])

    def ask(
        self, who: Login, method: str, path: str, body: Any = b"", **headers: str
    ) -> tuple[int, bytes]:
        answer = self._client.ask(method, path, body, Authorization=who.header, **headers)
        return answer.status, answer.body

    def json(self, who: Login, method: str, path: str, body: Any = b"") -> tuple[int, Any]:
        status, data = self.ask(who, method, path, body)
        return status, json.loads(data) if data else None

    def close(self) -> None:
        self._client.close()


class Question(NamedTuple):
    """Records of a topic from an offset on; `key` is another one each time."""

    asker: Asker
    login: Login
    topic: str
    base: int
    key: str

    @property
    def path(self) -> str:
        return f"/v1/topics/{self.topic}"


Payloads = tuple[int, set[str]]  # the status, and what was found


def _page(status: int, page: Any) -> Payloads:
    if status >= 300:
        return status, set()
    return status, {one["payload"] for one in page["records"]}


def records_page(asked: Question) -> Payloads:
    path = f"{asked.path}/records?from={asked.base}"
    return _page(*asked.asker.json(asked.login, "GET", path))


def records_by_name(asked: Question) -> Payloads:
    """`#` and `$odd/#` are all names there are."""
    found: set[str] = set()
    status = 0
    for names in ("%23", "$odd/%23"):
        path = f"{asked.path}/records?from={asked.base}&names={names}"
        status, more = _page(*asked.asker.json(asked.login, "GET", path))
        found |= more
    return status, found


def arrow_page(asked: Question) -> Payloads:
    path = f"{asked.path}/records?from={asked.base}"
    status, body = asked.asker.ask(asked.login, "GET", path, Accept=ARROW)
    if status >= 300:
        return status, set()
    found = pa.ipc.open_stream(body).read_all()["payload"].to_pylist()
    return status, {one.decode() for one in found}


def consumer_fetch(asked: Question) -> Payloads:
    path = f"{asked.path}/consumers/{asked.key}"
    status, _ = asked.asker.ask(asked.login, "PUT", path, {"from": asked.base})
    if status >= 300:
        return status, set()
    return _page(*asked.asker.json(asked.login, "POST", f"{path}/fetch", {}))


def group_fetch(asked: Question) -> Payloads:
    path = f"{asked.path}/groups/{asked.key}/fetch"
    body = {"from": asked.base, "limit": 1000}
    return _page(*asked.asker.json(asked.login, "POST", path, body))


def seed_consume(asked: Question) -> Payloads:
    """One after the other, from a place that `seek` names."""
    body = {"topic": asked.topic}
    status, answer = asked.asker.json(asked.login, "POST", "/consumer/register", body)
    if status >= 300:
        return status, set()
    body["consumer_id"] = answer["consumer_id"]
    path = f"{asked.path}/consumers/{answer['consumer_id']}/seek"
    assert asked.asker.ask(asked.login, "POST", path, {"from": asked.base})[0] < 300
    found: set[str] = set()
    while True:
        taken, answer = asked.asker.json(asked.login, "GET", "/consumer/consume", body)
        if taken == 500:  # it has read everything
            return status, found
        assert taken == 200, answer
        found.add(answer["message"])


READ_ONCE: Final[dict[str, Callable[[Question], Payloads]]] = {
    "records": records_page,
    "records-by-name": records_by_name,
    "arrow": arrow_page,
    "consumer": consumer_fetch,
    "group": group_fetch,
    "seed-consume": seed_consume,
}
