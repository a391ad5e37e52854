"""One side of a bridge: an MQTT conversation as the client, with the bytes left to others.

Answers go to whoever asked; messages and their acknowledgements go to the relay, as the runs that
the scanner finds. So this end has no packet ids and no messages of its own, and a message costs no
object. What is sent leaves at the end of the tick, in one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from penstock.doors.mqtt.connection import PACKET_BYTES_MAX
from penstock.model.errors import PenstockError, UnavailableError
from penstock.mqtt.decode import decode_packet
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
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.scanner import AckRun, Chunk, Intake, PublishRun

ANSWER_S_MAX: Final = 30.0  # for CONNACK, SUBACK, UNSUBACK
# Packets of one kind only are answered by id, so an id that a message has may be used here, too.
ASKING_ID: Final = 0xFFFF

Answer = Connack | Suback | Unsuback
A = TypeVar("A", Connack, Suback, Unsuback)


class Way(Protocol):
    """Takes what comes from one broker and is meant for the other."""

    def messages(self, chunk: Chunk, run: PublishRun) -> None: ...

    def acks(self, chunk: Chunk, run: AckRun) -> None:
        """Successes of one kind, without a reason."""
        ...

    def ack(self, packet: Ack) -> None:
        """One that gives a reason."""
        ...


class _Early:
    """A way that keeps what comes before there is one."""

    def __init__(self) -> None:
        self.calls: list[Callable[[Way], None]] = []

    def messages(self, chunk: Chunk, run: PublishRun) -> None:
        self.calls.append(lambda way: way.messages(chunk, run))

    def acks(self, chunk: Chunk, run: AckRun) -> None:
        self.calls.append(lambda way: way.acks(chunk, run))

    def ack(self, packet: Ack) -> None:
        self.calls.append(lambda way: way.ack(packet))


class Conversation:
    """`write` sends bytes to the other end."""

    def __init__(self, whom: str, version: int, write: Callable[[bytes], None]) -> None:
        self.whom = whom  # for error messages
        self.version = version
        self._loop = asyncio.get_running_loop()
        self._at_tick_end = getattr(self._loop, "call_at_tick_end", self._loop.call_soon)
        self.ended: asyncio.Future[PenstockError] = self._loop.create_future()
        self._write = write
        self._out: list[bytes] = []
        self._intake = Intake(version, PACKET_BYTES_MAX, Role.SERVER)
        self._answers: dict[type[Answer], asyncio.Future[Answer]] = {}
        self._early = _Early()
        self._way: Way = self._early

    def begin(self, way: Way) -> None:
        """From now on `way` takes messages and acknowledgements; first those that came before."""
        self._way = way
        for call in self._early.calls:
            call(way)
        self._early.calls.clear()

    def feed(self, data: bytes) -> None:
        """Bytes from the other end; what is wrong with them ends the conversation."""
        if self.ended.done():
            return
        way = self._way
        try:
            chunk = self._intake.feed(data)
            for item in chunk.items:
                if isinstance(item, PublishRun):
                    way.messages(chunk, item)
                elif isinstance(item, AckRun):
                    way.acks(chunk, item)
                else:
                    body = chunk.data[item.body : item.end]
                    packet = decode_packet(item.first_byte, body, chunk.version, chunk.sender)
                    if isinstance(packet, Ack):
                        way.ack(packet)
                    else:
                        self._take(packet)
            if chunk.violation is not None:
                raise chunk.violation
        except PenstockError as error:
            self.end(error)

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, Connack | Suback | Unsuback):
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
            self._at_tick_end(self._flush)

    def _flush(self) -> None:
        """One write for all packets of a tick."""
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
