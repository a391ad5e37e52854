"""A small MQTT client for the command line: 3.1, 3.1.1 and 5, QoS 0 to 2, one connection.

It does not reconnect: a lost connection is an UnavailableError. A client made after it takes over
what was in flight (`cli.line` does that). What may be in flight is bounded by the server's receive
maximum and by IN_FLIGHT_MAX. A message of QoS 2 is handed out once, when it first arrives.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from penstock.doors.unreachable import unreachable
from penstock.model.errors import PeerError, RefusedError, UnavailableError
from penstock.model.limits import KIB, MIB
from penstock.mqtt.encode import encode
from penstock.mqtt.endings import ended, lost
from penstock.mqtt.errors import ProtocolViolation, protocol_error
from penstock.mqtt.kinds import MQTT_5, PACKET_ID_MAX, PacketType, Role
from penstock.mqtt.offers import Offers
from penstock.mqtt.packets import (
    PACKET_TYPES,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import FAILURE, Reason
from penstock.mqtt.scanner import Intake
from penstock.mqtt.state import (
    Answer,
    Duty,
    Incoming,
    Outgoing,
    answer_of,
    next_incoming,
    next_outgoing,
)
from penstock.mqtt.unpacking import unpack

T = TypeVar("T")

READ_BYTES: Final = 64 * KIB
PACKET_BYTES_MAX: Final = 256 * MIB  # MQTT's own bound
IN_FLIGHT_MAX: Final = 100  # unacknowledged messages of ours
MESSAGES_MAX: Final = 1_000  # received and not yet taken; then nothing more is read
ANSWER_S_MAX: Final = 30.0  # for CONNACK, SUBACK, UNSUBACK
CLOSE_S_MAX: Final = 5.0  # for the last bytes to leave
_NOT_FOUND: Final = Reason.PACKET_IDENTIFIER_NOT_FOUND


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect, and as whom."""

    host: str
    port: int
    connect: Connect
    tls: ssl.SSLContext | None = None
    wait_s_max: float = ANSWER_S_MAX
    is_debug: bool = False

    @property
    def where(self) -> str:
        return f"{self.host}:{self.port}"


class Outcome(NamedTuple):
    """How the server answered a message."""

    reason: Reason = Reason.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class _Sent:
    """A message of ours above QoS 0."""

    message: Publish
    state: Outgoing
    done: asyncio.Future[Outcome] = field(repr=False)


class MqttClient:
    """Made by `open_client`. One task reads; callers write."""

    def __init__(
        self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.is_session_present = False
        self.has_advanced = False  # a message came, or one of ours was acknowledged
        self._target = target
        self._reader = reader
        self._writer = writer
        self._version = target.connect.version
        self._intake = Intake(self._version, PACKET_BYTES_MAX, Role.SERVER)
        self._loop = asyncio.get_running_loop()
        self._connack: asyncio.Future[Connack] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[Suback | Unsuback]] = {}
        self._sent: dict[int, _Sent] = {}
        self._incoming: dict[int, Incoming] = {}
        self._messages: asyncio.Queue[Publish | None] = asyncio.Queue(MESSAGES_MAX)
        self._window = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._offers = Offers()
        self._names: dict[int, str] = {}  # topic alias of the server -> the name it stands for
        self._next_id = 0
        self._error: Exception | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._reading = self._loop.create_task(self._read())
        self._pinging: asyncio.Task[None] | None = None
        self._last_sent_s = self._last_seen_s = self._opened_s = self._loop.time()

    @property
    def stood_s(self) -> float:
        """How long ago it was connected."""
        return self._loop.time() - self._opened_s

    @property
    def unanswered(self) -> Publish | None:
        """The first message of ours that waits for the server's acknowledgement."""
        return next((sent.message for sent in self._sent.values()), None)

    # Coming and going

    async def start(self, before: MqttClient | None = None) -> None:
        """Send CONNECT; RefusedError says why the server does not want us.

        What the connection before this one had in flight is sent again.
        """
        self.write(self._target.connect)
        try:
            answer = await self._wait(self._connack, "CONNACK")
        except PeerError as broken:
            raise PeerError(
                f"the server at {self._target.where} does not speak MQTT ({broken}): "
                "give the port of an MQTT listener with -p"
            ) from broken
        if answer.reason:
            raise ended("the server rejected the connection:", answer.reason, answer.properties)
        if answer.session_present and self._target.connect.clean_start:
            raise protocol_error("a session is present after a clean start", "MQTT-3.2.2-4")
        self._offers = Offers(answer.properties)
        self._window = asyncio.Semaphore(min(self._offers.receive_max, IN_FLIGHT_MAX))
        keep_alive_s = answer.properties.server_keep_alive
        if keep_alive_s is None:
            keep_alive_s = self._target.connect.keep_alive_s
        if keep_alive_s:
            self._pinging = self._loop.create_task(self._ping(keep_alive_s))
        self.is_session_present = answer.session_present
        if before is not None:
            self._take_over(before)

    def _take_over(self, before: MqttClient) -> None:
        """Go on with what was in flight (MQTT 5 §4.4); without its session it is sent anew."""
        self._next_id = before._next_id
        if self.is_session_present:
            self._incoming = before._incoming
        for packet_id, sent in before._sent.items():
            if sent.state is not Outgoing.WAIT_PUBCOMP:
                self.write(replace(sent.message, dup=self.is_session_present))
            elif self.is_session_present:
                self.write(Pubrel(packet_id))
            else:  # the server had it: there is nothing left to say
                sent.done.set_result(Outcome())
                continue
            self._sent[packet_id] = sent
        most = min(self._offers.receive_max, IN_FLIGHT_MAX)
        self._window = asyncio.Semaphore(max(most - len(self._sent), 0))

    async def stop(self, properties: Properties = NO_PROPERTIES) -> None:
        """Send DISCONNECT if the connection is still open."""
        if self._error is None:
            self.write(Disconnect(properties=properties))
        await self.drop()

    async def drop(self) -> None:
        """Close without a word."""
        for task in (self._reading, self._pinging):
            if task is not None:
                task.cancel()
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._writer.wait_closed()

    # Out

    async def publish(
        self,
        name: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> asyncio.Future[Outcome]:
        """Send a message as soon as the window has room; the future has the server's answer.

        Above QoS 0 a message that was taken stays in flight when the connection is lost.
        """
        done: asyncio.Future[Outcome] = self._loop.create_future()
        message = Publish(name, payload, qos, retain, properties=properties)
        self._offers.check(message)
        if qos:
            await self._window.acquire()
        self._check()
        if qos:
            message = replace(message, packet_id=self._take_id())
        self.write(message)
        if qos:
            state = Outgoing.WAIT_PUBACK if qos == 1 else Outgoing.WAIT_PUBREC
            self._sent[message.packet_id] = _Sent(message, state, done)
            with suppress(UnavailableError):  # the next connection sends it again
                await self._drain()
        else:
            await self._drain()
            done.set_result(Outcome())
        return done

    async def wait_acknowledged(self, done: asyncio.Future[Outcome]) -> Outcome:
        """Suspends until the server has answered; UnavailableError if the connection is lost."""
        either: set[asyncio.Future[Any]] = {done, self._ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            self._check()
        return done.result()

    async def subscribe(
        self, subscriptions: tuple[Subscription, ...], properties: Properties = NO_PROPERTIES
    ) -> Suback | Unsuback:
        packet_id, answer = self._ask()
        self.write(Subscribe(packet_id, subscriptions, properties))
        return await self._wait(answer, "SUBACK")

    async def unsubscribe(self, filters: tuple[str, ...]) -> Suback | Unsuback:
        packet_id, answer = self._ask()
        self.write(Unsubscribe(packet_id, filters))
        return await self._wait(answer, "UNSUBACK")

    def _ask(self) -> tuple[int, asyncio.Future[Suback | Unsuback]]:
        packet_id = self._take_id()
        answer = self._answers[packet_id] = self._loop.create_future()
        return packet_id, answer

    def _take_id(self) -> int:
        """Skip ids still in flight: reusing one before its ack confuses the receiver."""
        while True:
            self._next_id = self._next_id % PACKET_ID_MAX + 1
            if self._next_id not in self._sent and self._next_id not in self._answers:
                return self._next_id

    def write(self, packet: Packet) -> None:
        data = encode(packet, self._version)
        self._offers.check_size(len(data))
        self._debug("sent", packet)
        self._last_sent_s = self._loop.time()
        self._writer.write(data)

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError as failed:
            raise self._error or lost(failed) from failed

    async def _ping(self, keep_alive_s: int) -> None:
        """Whatever we send counts; after a silence of most of the keep alive, a PINGREQ."""
        while self._loop.time() < self._last_seen_s + keep_alive_s * 1.5:
            due_s = self._last_sent_s + keep_alive_s * 0.75 - self._loop.time()
            if due_s > 0:
                await asyncio.sleep(due_s)
            else:
                self.write(Pingreq())
        await self._end(
            UnavailableError(
                f"the connection was lost: the server sent nothing for {keep_alive_s * 1.5:g} s"
            )
        )

    # In

    async def messages(self) -> AsyncIterator[Publish]:
        """What arrives, until the connection ends; `acknowledge` each one that was dealt with."""
        while (message := await self._messages.get()) is not None:
            yield message
        self._check()

    def acknowledge(self, message: Publish) -> None:
        if message.qos == 1:
            self.write(Puback(message.packet_id))
        elif message.qos == 2:
            self.write(Pubrec(message.packet_id))

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(READ_BYTES):
                self._last_seen_s = self._loop.time()
                for packet in unpack(self._intake.feed(data)):
                    self._debug("received", packet)
                    await self._take(packet)
            raise lost(None)
        except asyncio.CancelledError:
            raise
        except (PeerError, RefusedError, UnavailableError) as error:
            if isinstance(error, ProtocolViolation) and self._version == MQTT_5:
                self.write(Disconnect(error.reason))
            await self._end(error)
        except OSError as failed:
            await self._end(lost(failed))

    async def _take(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            await self._take_message(packet)
        elif isinstance(packet, Pubrel):
            state = self._incoming.pop(packet.packet_id, Incoming.FREE)
            next_incoming(state, Answer.PUBREL)
            self.write(Pubcomp(packet.packet_id))
        elif isinstance(packet, Puback | Pubrec | Pubcomp):
            self._take_ack(packet)
        elif isinstance(packet, Suback | Unsuback):
            answer = self._answers.pop(packet.packet_id, None)
            if answer is not None and not answer.done():
                answer.set_result(packet)
        elif isinstance(packet, Connack):
            if not self._connack.done():
                self._connack.set_result(packet)
        elif isinstance(packet, Disconnect):
            raise ended("the server closed the connection:", packet.reason, packet.properties)
        elif isinstance(packet, Auth):
            raise protocol_error("the server sent AUTH, which this client does not support")

    def _named(self, message: Publish) -> Publish:
        """The message with its name, which a topic alias may stand for (MQTT 5 §3.3.2.3.4)."""
        alias = message.properties.topic_alias
        if alias is None:
            return message
        name = message.name or self._names.get(alias, "")
        if alias > (self._target.connect.properties.topic_alias_maximum or 0) or not name:
            raise ProtocolViolation(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias}")
        self._names[alias] = name
        return replace(message, name=name)

    async def _take_message(self, message: Publish) -> None:
        message = self._named(message)
        if message.qos == 2:
            state = self._incoming.get(message.packet_id, Incoming.FREE)
            state, duty = next_incoming(state, Answer.PUBLISH_QOS_2)
            self._incoming[message.packet_id] = state
            if duty is not Duty.TAKE_AND_PUBREC:
                self.write(Pubrec(message.packet_id))
                return
        self.has_advanced = True
        await self._messages.put(message)

    def _take_ack(self, packet: Ack) -> None:
        self.has_advanced = True
        sent = self._sent.get(packet.packet_id)
        state = Outgoing.FREE if sent is None else sent.state
        answer = answer_of(PacketType(PACKET_TYPES[type(packet)]), packet.reason)
        step = next_outgoing(state, answer)
        if step.duty is Duty.SEND_PUBREL:
            assert sent is not None
            sent.state = step.state
            self.write(Pubrel(packet.packet_id))
        elif step.duty is Duty.SEND_PUBREL_NOT_FOUND:
            self.write(Pubrel(packet.packet_id, _NOT_FOUND))
        elif step.duty is Duty.FINISH:
            assert sent is not None
            del self._sent[packet.packet_id]
            self._window.release()
            # A PUBREL said again after a reconnect may find nothing left (MQTT 5 §3.7.2.1).
            is_over = isinstance(packet, Pubcomp) and packet.reason == _NOT_FOUND
            if not sent.done.done():
                outcome = Outcome() if is_over else Outcome(packet.reason, packet.properties)
                sent.done.set_result(outcome)

    async def _end(self, error: Exception) -> None:
        """Whoever waits for something hears why it will not come."""
        if self._error is not None:
            return
        self._error = error
        self._ended.set_result(None)
        waiting: list[asyncio.Future[Any]] = [self._connack, *self._answers.values()]
        for one in waiting:
            if not one.done():
                one.set_exception(error)
                one.exception()  # it may be that nobody asks
        for _ in range(IN_FLIGHT_MAX):
            self._window.release()
        await self._messages.put(None)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    async def _wait(self, answer: asyncio.Future[T], what: str) -> T:
        self._check()
        try:
            # Not wait_for: when the answer is there, Python 3.11's loses a Ctrl-C.
            async with asyncio.timeout(self._target.wait_s_max):
                return await answer
        except TimeoutError:
            raise UnavailableError(
                f"no {what} from the server within {self._target.wait_s_max:g} s"
            ) from None

    def _debug(self, what: str, packet: Packet) -> None:
        if self._target.is_debug:
            if isinstance(packet, Connect) and packet.password is not None:
                packet = replace(packet, password=b"***")
            shown = repr(packet)
            print(f"{what:<8} {shown[:200]}", file=sys.stderr, flush=True)


async def open_client(target: Target, before: MqttClient | None = None) -> MqttClient:
    """Connect; UnavailableError when nobody answers, RefusedError when the server says no.

    What `before`, whose connection is lost, had in flight is taken over.
    """
    where = target.where
    try:
        async with asyncio.timeout(target.wait_s_max):
            reader, writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls)
    except TimeoutError:
        raise UnavailableError(
            f"cannot connect to {where}: no answer within {target.wait_s_max:g} s"
        ) from None
    except OSError as failed:
        is_tls = target.tls is not None
        hint = "give its CA with --cafile"
        raise unreachable(where, failed, is_tls=is_tls, ca_hint=hint) from failed
    client = MqttClient(target, reader, writer)
    try:
        await client.start(before)
    except BaseException:
        await client.drop()
        raise
    return client


def is_failure(reason: Reason) -> bool:
    return reason >= FAILURE
