"""A client on the wire that keeps the bytes of each packet, and short ways to hold one."""

from __future__ import annotations

import socket
from collections.abc import Iterable

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Disconnect, Packet
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import Reason
from penstock.mqtt.unpacking import unpack
from tests.conformance.spelled import split
from tests.doors.hosted import Hosted
from tests.doors.wire import WAIT_S, Wire

BOTH = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5], ids=["3.1.1", "5"])


class Talk(Wire):
    """As a Wire; `raw` is the packet that was read last, as it came."""

    def __init__(
        self,
        port: int,
        client_id: str = "",
        version: int = MQTT_3_1_1,
        sock: socket.socket | None = None,
    ) -> None:
        super().__init__(port, client_id, version, sock)
        self.raw = b""
        self._unread = b""

    def next(self) -> Packet:
        if self._packets:  # `pick` had kept it for later
            self.raw = b""
            return self._packets.popleft()
        while (found := split(self._unread)) is None:
            data = self._socket.recv(65536)
            if not data:
                raise EOFError("closed by the broker")
            self._unread += data
        self.raw, self._unread = found
        (packet,) = unpack(self._intake.feed(self.raw))
        return packet

    def next_raw(self) -> bytes:
        """The next packet as it came."""
        self.next()
        return self.raw

    def ends_without_a_word(self) -> bool:
        """Waits for the broker to close; False if it says something first."""
        try:
            return not self._unread and not self._socket.recv(1)
        except ConnectionError:
            return True
        finally:
            self._socket.settimeout(WAIT_S)

    def assert_ended(self, *reasons: Reason) -> None:
        """The broker closes; MQTT 5 is told why first, older clients nothing."""
        if self.version == MQTT_5:
            assert self.expect(Disconnect).reason in reasons
        assert self.ends_without_a_word()


def join(
    broker: Hosted, client_id: str, version: int = MQTT_5, *, clean: bool = True, **asked: int
) -> Talk:
    """A connected client; `asked` are properties of its CONNECT."""
    talk = Talk(broker.port, client_id, version)
    talk.connect(clean=clean, properties=Properties(**asked) if asked else NO_PROPERTIES)
    return talk


def come_back(broker: Hosted, client_id: str, version: int, **asked: int) -> tuple[Talk, bool]:
    """A client whose session outlives its connection, and whether it was there before."""
    talk = Talk(broker.port, client_id, version)
    properties = NO_PROPERTIES
    if version == MQTT_5:
        properties = Properties(**({"session_expiry_interval": 3600} | asked))
    return talk, talk.connect(clean=False, properties=properties).session_present


def kinds(packets: Iterable[Packet]) -> list[type[Packet]]:
    return [type(packet) for packet in packets]
