"""One side of a bridge: an MQTT conversation as the client, with the bytes left to others.

Answers go to whoever asked; messages and their acknowledgements go to the relay, unchanged. So this
end has no packet ids and no messages of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.doors.mqtt.connection import PACKET_BYTES_MAX
from penstock.model.errors import PenstockError, UnavailableError
from penstock.mqtt.encode import encode
from penstock.mqtt.endings import ended
from penstock.mqtt.errors import protocol_error
from penstock.mqtt.kinds import Role
from penstock.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.scanner import Intake
from penstock.mqtt.unpacking import unpack

ANSWER_S_MAX: Final = 30.0  # for CONNACK, SUBACK, UNSUBACK
# Packets of one kind only are answered by id, so an id that a message has may be used here, too.
ASKING_ID: Final = 0xFFFF

Answer = Connack | Suback | Unsuback
A = TypeVar("A", Connack, Suback, Unsuback)


class Conversation:
    """`write` sends bytes to the other end; `relay` takes what is not an answer."""

    def __init__(self, whom: str, version: int, write: Callable[[bytes], None]) -> None:
        self.whom = whom  # for error messages
        self.version = version
        self.relay: Callable[[Publish | Ack], None] = lambda packet: None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[PenstockError] = self._loop.create_future()
        self._write = write
        self._out: list[bytes] = []
        self._intake = Intake(version, PACKET_BYTES_MAX, Role.SERVER)
        self._answers: dict[type[Answer], asyncio.Future[Answer]] = {}

    def feed(self, data: bytes) -> None:
        """Bytes from the other end; what is wrong with them ends the conversation."""
        if self.ended.done():
            return
        try:
            for packet in unpack(self._intake.feed(data)):
                self._take(packet)
        except PenstockError as error:
            self.end(error)

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, Publish | Ack):
            self.relay(packet)
        elif isinstance(packet, Connack | Suback | Unsuback):
            answer = self._answers.pop(type(packet), None)
            if answer is None or answer.done():
                raise protocol_error(f"an answer to nothing: {type(packet).__name__.upper()}")
            answer.set_result(packet)
        elif isinstance(packet, Disconnect):
            what = f"{self.whom} closed the connection:"
            raise ended(what, packet.reason, packet.properties)
        elif isinstance(packet, Auth):
            raise protocol_error("AUTH, which a bridge does not support")
        else:
            assert isinstance(packet, Pingresp), packet

    def end(self, error: PenstockError) -> None:
        """Nothing more comes from there."""
        if self.ended.done():
            return
        self.ended.set_result(error)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # it may be that nobody asks

    def send(self, packet: Packet) -> None:
        self.send_bytes(encode(packet, self.version))

    def send_bytes(self, data: bytes) -> None:
        """Whole packets."""
        self._out.append(data)
        if len(self._out) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """One write for all packets of a turn of the loop."""
        out, self._out = self._out, []
        self._write(b"".join(out))

    async def connect(self, packet: Connect) -> Connack:
        """Log in; RefusedError or UnavailableError says why the other end does not want us."""
        answer = await self._ask(packet, Connack)
        if answer.reason:
            what = f"{self.whom} rejected the connection:"
            raise ended(what, answer.reason, answer.properties)
        return answer

    async def subscribe(self, wanted: list[Subscription]) -> Suback:
        return await self._ask(Subscribe(ASKING_ID, tuple(wanted)), Suback)

    async def unsubscribe(self, filters: list[str]) -> None:
        await self._ask(Unsubscribe(ASKING_ID, tuple(filters)), Unsuback)

    async def _ask(self, packet: Packet, kind: type[A]) -> A:
        if self.ended.done():
            raise self.ended.result()
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._answers[kind] = answer
        self.send(packet)
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                given = await answer
        except TimeoutError:
            raise UnavailableError(
                f"no {kind.__name__.upper()} from {self.whom} within {ANSWER_S_MAX:g} s"
            ) from None
        assert isinstance(given, kind)
        return given
