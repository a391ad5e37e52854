"""A server that says exactly what it is told to, for `penstock pub` and `penstock sub` to meet."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

from penstock.cli.main import main
from penstock.mqtt.kinds import MQTT_5, UNKNOWN_VERSION, Role
from penstock.mqtt.packets import Connack, Connect, Packet
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.scanner import Intake
from penstock.mqtt.unpacking import unpack
from tests.doors.wire import WAIT_S, Wire


class Command(threading.Thread):
    """A command that runs while the test plays its server."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(name=f"penstock-{arguments[0]}", daemon=True)
        self._arguments = arguments
        self._code: int | None = None

    def run(self) -> None:
        self._code = main(self._arguments)

    def result(self) -> int | None:
        """Its exit code, once it has ended."""
        self.join(WAIT_S)
        assert not self.is_alive(), "the command does not end"
        return self._code


class Peer(Wire):
    """The server's end of the connection that a command makes."""

    def __init__(self, *arguments: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(WAIT_S)
            port = str(listener.getsockname()[1])
            self.command = Command(arguments[0], "-h", "127.0.0.1", "-p", port, *arguments[1:])
            self.command.start()
            sock, _ = listener.accept()
        sock.settimeout(WAIT_S)
        super().__init__(0, version=UNKNOWN_VERSION, sock=sock)
        self._intake = Intake(UNKNOWN_VERSION, 1 << 28, Role.CLIENT)

    def next(self) -> Packet:
        packet = super().next()
        if isinstance(packet, Connect):
            self.version = self._intake.version = packet.version
            self._packets.extend(unpack(self._intake.feed(b"")))
        return packet

    def welcome(self, said: Properties = NO_PROPERTIES, *, is_present: bool = False) -> Connect:
        """Let the command in; what it had asked for."""
        asked = self.expect(Connect)
        self.send(Connack(is_present, properties=said))
        return asked

    def is_silent(self) -> bool:
        """Nothing comes for a while; long enough for a packet that was on its way."""
        return self.poll(0.2) is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        self.command.result()


def sub(*arguments: str, version: int = MQTT_5) -> Peer:
    """It ends with its connection: nobody listens any more where it would connect again."""
    return Peer("sub", "-V", "5" if version == MQTT_5 else "311", "--no-reconnect", *arguments)


def pub(*arguments: str, version: int = MQTT_5) -> Peer:
    return Peer("pub", "-V", "5" if version == MQTT_5 else "311", *arguments)
