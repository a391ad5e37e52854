"""MQTT inside WebSocket, on `/mqtt` (MQTT 5 §6): a Link for the MQTT door's connections.

Frames are only an envelope: packets may be split over them at any byte, and one may hold several.
Clients log in with their CONNECT, as everywhere in MQTT, not with the HTTP request; or with the
certificate of the TLS connection, if there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.core.access import NOBODY
from penstock.doors.http.limits import OUT_BYTES_ROOM
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.router import Route
from penstock.doors.http.wire.messages import Asker, Request, Upgrade
from penstock.doors.http.wire.websocket import Receiver, WebSocket
from penstock.doors.mqtt.connection import PACKET_BYTES_MAX, Connection
from penstock.doors.mqtt.door import MqttDoor
from penstock.doors.strangers import Stranger
from penstock.model.certificate import Certificate

PATH: Final = "/mqtt"
SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")

NORMAL: Final = 1000
NOT_BINARY: Final = 1003
BUSY: Final = 1013


def add_routes(door: Endpoints, mqtt: MqttDoor) -> None:
    def begin(asker: Asker, socket: WebSocket) -> Receiver:
        return MqttReceiver(mqtt, socket, asker.certificate, door.stranger(asker))

    def upgrade(request: Request) -> Upgrade:
        door.check_room()
        # No pings: MQTT has its own keep alive, and paho-mqtt answers them without a mask, which
        # would cost it the connection (RFC 6455 §5.1).
        made = partial(begin, request.asker)
        return Upgrade(made, SUBPROTOCOLS, PACKET_BYTES_MAX, is_pinged=False)

    door.router.add(Route("GET", PATH, upgrade, is_open=True, changes=True))


class WebSocketLink:
    """Implements Link: what is sent in one go goes into one frame."""

    __slots__ = ("_is_wanted", "_loop", "_on_writable", "_socket", "certificate")

    def __init__(self, socket: WebSocket, certificate: Certificate | None) -> None:
        self._socket = socket
        self.certificate = certificate
        self._loop = asyncio.get_running_loop()
        self._is_wanted = False
        self._on_writable: Callable[[], None] | None = None

    def bind(self, on_writable: Callable[[], None]) -> None:
        self._on_writable = on_writable

    @property
    def source(self) -> str:
        return self._socket.source

    @property
    def peer(self) -> str:
        return self._socket.peer

    def send(self, data: bytes | memoryview) -> int:
        socket = self._socket
        if not socket.is_open:
            raise ConnectionResetError("the WebSocket is closed")
        if socket.out_bytes >= OUT_BYTES_ROOM:
            return 0
        part = bytes(data[:OUT_BYTES_ROOM])
        socket.send(part)
        return len(part)

    def want_write(self, wanted: bool) -> None:
        if wanted and not self._is_wanted:
            self._loop.call_soon(self.on_room)
        self._is_wanted = wanted

    def on_room(self) -> None:
        """As epoll does, for as long as it is wanted and there is room."""
        if self._is_wanted and self._socket.out_bytes < OUT_BYTES_ROOM and self._on_writable:
            self._on_writable()

    def want_read(self, wanted: bool) -> None:
        self._socket.want_read(wanted)

    def close_after(self, data: bytes) -> None:
        if data and self._socket.is_open:
            self._socket.send(data)
        self._socket.want_read(True)
        self.close()

    def close(self) -> None:
        self._on_writable = None
        self._socket.close_with(NORMAL, "")


class MqttReceiver:
    """Implements Receiver: hands frames to an MQTT connection."""

    __slots__ = ("_connection", "_link", "_socket")

    def __init__(
        self,
        door: MqttDoor,
        socket: WebSocket,
        certificate: Certificate | None,
        stranger: Stranger | None,
    ) -> None:
        self._socket = socket
        self._link = WebSocketLink(socket, certificate)
        self._connection: Connection | None = door.begin(self._link, stranger)
        if self._connection is None:
            socket.close_with(BUSY, "too many clients")
        else:
            self._link.bind(self._connection.on_writable)

    @property
    def is_known(self) -> bool:
        return self._connection is None or self._connection.principal is not NOBODY

    def on_frame(self, data: bytes, *, is_text: bool, is_end: bool) -> None:
        connection = self._connection
        if connection is None:
            return
        if is_text:  # [MQTT-6.0.0-1]
            self._socket.close_with(NOT_BINARY, "MQTT is sent in binary frames")
            connection.close()
        elif data and not connection.is_closed:
            connection.receive(data)

    def on_room(self) -> None:
        self._link.on_room()

    def on_gone(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
