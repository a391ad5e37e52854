"""Readers of every kind that wait for messages of one topic, and the users who open them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import pytest
from websockets.exceptions import ConnectionClosed

from penstock.broker.access import KEY_USER, Access
from penstock.core.access import parse_rule
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect, Publish
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire
from tests.http.access.test_http_access import basic
from tests.http.asking import Asking
from tests.http.events import Events, Frames
from tests.http.framed import Framed, open_websocket
from tests.waiting import WAIT_S

TOPIC = "/v1/topics/live"
_numbers = itertools.count()


class Login(NamedTuple):
    """A password of a user, or a key."""

    user: str
    secret: str

    @property
    def header(self) -> str:
        is_key = self.user == KEY_USER
        return f"Bearer {self.secret}" if is_key else basic(self.user, self.secret)


class Reader(Protocol):
    """Waits for messages of the topic `live`."""

    def check_ended(self, why: str) -> None: ...

    def take(self) -> str:
        """The payload of the next message."""
        ...

    def close(self) -> None: ...


class MqttReader:
    def __init__(self, broker: Hosted, login: Login, wire: Wire | None = None) -> None:
        client_id = f"client{next(_numbers)}"
        self._wire = wire or Wire(broker.port, client_id, MQTT_5)
        self._wire.send(Connect(client_id, username=login.user, password=login.secret.encode()))
        assert self._wire.expect(Connack).reason == Reason.SUCCESS
        self._subscribe()

    def _subscribe(self) -> None:
        self._wire.subscribe("live")

    def check_ended(self, why: str) -> None:
        end = self._wire.expect(Disconnect)
        assert end.reason == Reason.NOT_AUTHORIZED
        assert why in (end.properties.reason_string or "")
        assert self._wire.is_closed()

    def take(self) -> str:
        return self._wire.expect(Publish).payload.decode()

    def close(self) -> None:
        self._wire.close()


class FeedReader(MqttReader):
    """A subscription that reads the log."""

    def _subscribe(self) -> None:
        self._wire.subscribe_feed("live", from_="latest")


class FramedMqttReader(MqttReader):
    """MQTT in a WebSocket."""

    def __init__(self, broker: Hosted, login: Login) -> None:
        sock = Framed(broker.ports["http"])
        super().__init__(broker, login, Wire(0, "", MQTT_5, sock))  # type: ignore[arg-type]


class SseReader:
    def __init__(self, broker: Hosted, login: Login) -> None:
        path = f"{TOPIC}/stream"
        self._events = Events(broker.ports["http"], path, Authorization=login.header)
        assert self._events.next().kind == "start"

    def check_ended(self, why: str) -> None:
        with pytest.raises((EOFError, ConnectionError)):
            self._events.next()

    def take(self) -> str:
        return str(self._events.records(1)[0]["payload"])

    def close(self) -> None:
        self._events.close()


class SocketReader:
    def __init__(self, broker: Hosted, login: Login) -> None:
        headers = {"Authorization": login.header}
        path = f"{TOPIC}/stream"
        self._socket = open_websocket(broker.ports["http"], path, additional_headers=headers)
        self._frames = Frames(self._socket)
        assert self._frames.next()["type"] == "start"

    def check_ended(self, why: str) -> None:
        with pytest.raises(ConnectionClosed) as closed:
            self._frames.next()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
        assert why in closed.value.rcvd.reason

    def take(self) -> str:
        return str(self._frames.records(1)[0]["payload"])

    def close(self) -> None:
        self._socket.close()


class LongPoll:
    def __init__(self, broker: Hosted, login: Login) -> None:
        self._client = Asking(broker.ports["http"])
        before = waiting(broker)
        self.ask(login)
        deadline_s = time.monotonic() + WAIT_S
        while waiting(broker) == before:
            assert time.monotonic() < deadline_s

    def ask(self, login: Login) -> None:
        path = f"{TOPIC}/records?from=latest&wait={WAIT_S:.0f}"
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {login.header}\r\n\r\n"
        self._client.send(head.encode())

    def check_ended(self, why: str) -> None:
        answer = self._client.answer()
        assert answer.status == 401 and why in answer.detail

    def take(self) -> str:
        return str(self._client.answer().json["records"][0]["payload"])

    def close(self) -> None:
        self._client.close()


class GroupFetch(LongPoll):
    def ask(self, login: Login) -> None:
        body = b'{"limit": 1, "wait": %d, "from": "latest"}' % WAIT_S
        path = f"{TOPIC}/groups/g{next(_numbers)}/fetch"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {login.header}\r\n"
        self._client.send(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def waiting(broker: Hosted) -> int:
    """How many requests wait for something."""
    connections = broker.http._connections
    asked = broker.call(lambda: [one.current for one in connections])
    return sum(one is not None and one.task is not None and not one.task.done() for one in asked)


Open = Callable[[Hosted, Login], Reader]
READERS: tuple[Open, ...] = (
    MqttReader,
    FramedMqttReader,
    SseReader,
    SocketReader,
    LongPoll,
    GroupFetch,
)


class UsersWorld:
    """A broker with the admin alice, who publishes, and as many users as a test asks for."""

    def __init__(self, broker: Hosted) -> None:
        self.broker = broker
        self.admin = Login("alice", "wonder")
        self._client = Asking(broker.ports["http"])
        self._readers: list[Reader] = []
        assert self.ask("PUT", TOPIC, {}) in (200, 201)

    @property
    def access(self) -> Access:
        return self.broker.exchange.engine.access

    def ask(self, method: str, path: str, body: object = b"") -> int:
        return self._client.ask(method, path, body, Authorization=self.admin.header).status

    def add_user(self) -> Login:
        login = Login(f"user{next(_numbers)}", "secret")
        assert self.ask("PUT", f"/v1/users/{login.user}", {"password": login.secret}) == 201
        return login

    def add_key(self, login: Login) -> Login:
        return Login(KEY_USER, self.broker.run(lambda server: self.access.make_key(login.user)))

    def read(self, open_reader: Open, login: Login) -> Reader:
        reader = open_reader(self.broker, login)
        self._readers.append(reader)
        return reader

    def publish(self) -> str:
        """A message to the topic; its payload."""
        payload = f"message {next(_numbers)}"
        assert self.ask("POST", f"{TOPIC}/records", {"payload": payload}) in (200, 201)
        return payload

    def add_rule(self, rule: str, login: Login) -> int:
        """A rule of one user; its number."""
        rules, roles = [parse_rule(rule)], self.access.roles
        (added,) = self.broker.run(lambda server: roles.add_rules(rules, user=login.user))
        return added.rule_id

    def remove_rule(self, rule_id: int) -> None:
        self.broker.run(lambda server: self.access.roles.remove_rule(rule_id))

    def set_roles(self, login: Login, *roles: str) -> None:
        self.broker.run(lambda server: self.access.set_roles(login.user, roles))

    def check_going_on(self, *readers: Reader) -> None:
        payload = self.publish()
        assert [reader.take() for reader in readers] == [payload] * len(readers)

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers.clear()
