"""What passes over a bridge: messages and acknowledgements, each with the packet id it came with.

The session here and the session at the other broker keep what is in flight, durably. The relay
keeps nothing: it renames messages and hands packets on. An acknowledgement therefore always comes
from the broker that has stored the message, and after a crash of either broker the sessions agree
about each packet id, also at QoS 2.

Messages pass in runs. Where both sides call a name the same and speak the same version, the bytes
of a run pass as they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.core.naming.bridged_names import BridgeTopic, local_name, remote_name
from penstock.doors.bridge.conversation import Conversation
from penstock.doors.mqtt.connection import PACKET_BYTES_MAX
from penstock.doors.mqtt.encoding import packets_within, with_ids_within
from penstock.doors.mqtt.receive.publishing import PUBACK, PUBCOMP, PUBREC, PUBREL
from penstock.model.errors import UnavailableError
from penstock.model.limits import NAME_BYTES_MAX
from penstock.mqtt.encode import property_section
from penstock.mqtt.kinds import MQTT_5, PacketType
from penstock.mqtt.offers import Offers
from penstock.mqtt.packets import Ack, Puback, Pubcomp, Pubrec
from penstock.mqtt.primitives import write_varint
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import FAILURE, Reason, describe
from penstock.mqtt.runs import encode_acks, encode_publish_run, put_packet_ids
from penstock.mqtt.scanner import AckRun, Chunk, PublishRun

# A message that was refused for one of these is sent again later, in a new connection.
RETRIED: Final = frozenset({Reason.QUOTA_EXCEEDED, Reason.UNSPECIFIED_ERROR})
NAMES_MAX: Final = 4_096  # whose name on the other side is known
OUR_LIMITS: Final = Properties(maximum_packet_size=PACKET_BYTES_MAX)
STORED: Final = (PUBACK, PUBREC)  # the first answer to a message
TOO_LARGE: Final = "a packet is larger than it allows"
_RETAIN: Final = 0x01


@dataclass(slots=True)
class Counts:
    """What a bridge has carried since the broker started."""

    forwarded: int = 0  # acknowledged by the other broker; at QoS 0: sent
    received: int = 0  # stored here; at QoS 0: taken
    refused: int = 0  # dropped, because a broker refused them for good


Rename = Callable[[Sequence[BridgeTopic], str], str]


class Passage:
    """Brings the messages of one broker to the other, as that one calls and takes them."""

    def __init__(
        self, topics: tuple[BridgeTopic, ...], rename: Rename, to: Conversation, offers: Offers
    ) -> None:
        self._topics = topics
        self._rename = rename
        self._to = to
        self._offers = offers
        self._names: dict[bytes, bytes] = {}

    def name_of(self, name: bytes) -> bytes:
        """What the other broker calls it; empty if the bridge does not carry it."""
        known = self._names.get(name)
        if known is None:
            known = self._rename(self._topics, name.decode()).encode()
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            self._names[name] = known
        return known

    def problem(self, run: PublishRun, name: bytes) -> str:
        """Why the other broker would take none of these messages; '' if it does."""
        if not name:
            return "no topic of the bridge has the name of a message"
        if len(name) > NAME_BYTES_MAX:
            return f"the name is longer than {NAME_BYTES_MAX} bytes with its prefix"
        if run.qos > self._offers.qos_max:
            return f"QoS {run.qos} is higher than it allows"
        return ""

    def carry(self, chunk: Chunk, run: PublishRun, name: bytes) -> tuple[list[int], int]:
        """Send a run; the packet ids of messages that are too large, and how many are."""
        first_byte = run.first_byte
        if not self._offers.is_retaining:
            first_byte &= ~_RETAIN
        bytes_max = self._offers.packet_bytes_max
        is_alike = (
            first_byte == run.first_byte
            and name == run.name
            and self._to.version == chunk.version
            and not run.properties.subscription_identifiers
        )
        if is_alike and run.packet_bytes_max <= bytes_max:
            self._to.send_bytes(chunk.data[run.start : run.end])
            return [], 0
        encoded = encode_publish_run(
            first_byte,
            name,
            _section(run, self._to.version),
            chunk.data,
            chunk.payload_starts,
            payload_lengths=chunk.payload_lengths,
            first_message=run.first_message,
            end_message=run.end_message,
        )
        if not run.qos:
            data, too_many = packets_within(encoded.raw, bytes_max)
            if data:
                self._to.send_bytes(data)
            return [], too_many
        packet_ids = ids_of(chunk, run)
        if encoded.packet_bytes_max <= bytes_max:
            self._to.send_bytes(put_packet_ids(encoded, 0, packet_ids))
            return [], 0
        packets, too_large = with_ids_within(encoded, 0, packet_ids, bytes_max)
        for packet in packets:
            self._to.send_bytes(packet)
        return too_large, len(too_large)


def ids_of(chunk: Chunk, run: PublishRun) -> list[int]:
    """The packet ids of a run; none at QoS 0."""
    return chunk.packet_ids[run.first_id : run.first_id + run.count] if run.qos else []


def _section(run: PublishRun, version: int) -> bytes:
    """The properties, without the identifiers of our own subscriptions."""
    if version != MQTT_5:
        return b""
    if run.properties.subscription_identifiers:
        properties = replace(run.properties, subscription_identifiers=())
        return property_section(properties, PacketType.PUBLISH, version)
    return write_varint(len(run.property_bytes)) + run.property_bytes


class Relay:
    """Between two conversations; see `Bridge` for how they begin and end."""

    def __init__(
        self,
        topics: tuple[BridgeTopic, ...],
        local: Conversation,
        remote: Conversation,
        offers: Offers,
        counts: Counts,
        on_refused: Callable[[str, str], None],
    ) -> None:
        self.from_local = FromLocal(self)
        self.from_remote = FromRemote(self)
        self.out = Passage(topics, remote_name, remote, offers)
        self.back = Passage(topics, local_name, local, Offers(OUR_LIMITS))
        self.local = local
        self.remote = remote
        self.counts = counts
        self._on_refused = on_refused  # told by whom, and why
        self._releasing: set[int] = set()
        self._released: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def release(self, packet_ids: list[int]) -> None:
        """The other broker has lost its session: these ids of QoS 2 messages are free again."""
        if not packet_ids:
            return
        self._releasing.update(packet_ids)
        self.local.send_bytes(encode_acks(PUBREL, packet_ids))
        waited: list[asyncio.Future[Any]] = [self._released, self.local.ended]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)

    def take_released(self, packet_ids: list[int]) -> list[int]:
        """The ids of these PUBCOMP that are meant for the other broker."""
        if not self._releasing:
            return packet_ids
        meant = [one for one in packet_ids if one not in self._releasing]
        self._releasing.difference_update(packet_ids)
        if not self._releasing and not self._released.done():
            self._released.set_result(None)
        return meant

    def refuse(self, whom: Conversation, count: int, why: str) -> None:
        """Messages are dropped: that broker does not take them."""
        self.counts.refused += count
        self._on_refused(whom.whom, why)


class FromLocal:
    """Messages of this broker, and its answers to those of the other."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def messages(self, chunk: Chunk, run: PublishRun) -> None:
        relay = self._relay
        name = relay.out.name_of(run.name)
        problem = relay.out.problem(run, name)
        if problem:
            if name:  # else nobody asked for it: a filter that was removed from the settings
                relay.refuse(relay.remote, run.count, problem)
            _answer(run, ids_of(chunk, run), relay.local, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
            return
        too_large, count = relay.out.carry(chunk, run, name)
        if count:
            relay.refuse(relay.remote, count, TOO_LARGE)
            _answer(run, too_large, relay.local, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
        if not run.qos:
            relay.counts.forwarded += run.count - count

    def acks(self, chunk: Chunk, run: AckRun) -> None:
        relay = self._relay
        if run.first_byte == PUBCOMP:
            packet_ids = relay.take_released(chunk.packet_ids[run.first_id : run.end_id])
            if packet_ids:
                relay.remote.send_bytes(encode_acks(PUBCOMP, packet_ids))
            return
        if run.first_byte in STORED:
            relay.counts.received += run.end_id - run.first_id
        relay.remote.send_bytes(chunk.data[run.start : run.end])

    def ack(self, packet: Ack) -> None:
        relay = self._relay
        if isinstance(packet, Pubcomp) and not relay.take_released([packet.packet_id]):
            return
        if isinstance(packet, Puback | Pubrec):
            if packet.reason in RETRIED:
                why = _why(packet)
                relay.local.end(UnavailableError(f"a received message was not stored: {why}"))
                return
            if packet.reason >= FAILURE:
                relay.refuse(relay.local, 1, _why(packet))
            else:
                relay.counts.received += 1
        relay.remote.send(type(packet)(packet.packet_id))


class FromRemote:
    """Messages of the other broker, and its answers to ours."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def messages(self, chunk: Chunk, run: PublishRun) -> None:
        relay = self._relay
        name = relay.back.name_of(run.name)
        problem = relay.back.problem(run, name)
        too_large, count = ids_of(chunk, run), run.count
        if not problem:
            too_large, count = relay.back.carry(chunk, run, name)
        if count:
            relay.refuse(relay.local, count, problem or TOO_LARGE)
            _answer(run, too_large, relay.remote, Reason.SUCCESS)
        if not run.qos:
            relay.counts.received += run.count - count

    def acks(self, chunk: Chunk, run: AckRun) -> None:
        relay = self._relay
        if run.first_byte in STORED:
            relay.counts.forwarded += run.end_id - run.first_id
        relay.local.send_bytes(chunk.data[run.start : run.end])

    def ack(self, packet: Ack) -> None:
        relay = self._relay
        reason = Reason.SUCCESS
        if isinstance(packet, Puback | Pubrec):
            if packet.reason in RETRIED:
                whom, why = relay.remote.whom, _why(packet)
                relay.remote.end(UnavailableError(f"{whom} did not store a message: {why}"))
                return
            if packet.reason >= FAILURE:
                relay.refuse(relay.remote, 1, _why(packet))
                reason = packet.reason
            else:
                relay.counts.forwarded += 1
        relay.local.send(type(packet)(packet.packet_id, reason))


def _why(answer: Puback | Pubrec) -> str:
    return answer.properties.reason_string or describe(answer.reason)


def _answer(run: PublishRun, packet_ids: list[int], to: Conversation, reason: Reason) -> None:
    """Be done with messages that do not pass."""
    if run.qos and packet_ids:
        said = reason if to.version == MQTT_5 else Reason.SUCCESS
        to.send_bytes(encode_acks(PUBACK if run.qos == 1 else PUBREC, packet_ids, said))
