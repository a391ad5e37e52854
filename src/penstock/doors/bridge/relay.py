"""What passes over a bridge: messages and acknowledgements, each with the packet id it came with.

The session here and the session at the other broker keep what is in flight, durably. The relay
keeps nothing: it renames messages and hands packets on. An acknowledgement therefore always comes
from the broker that has stored the message, and after a crash of either broker the sessions agree
about each packet id, also at QoS 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.core.bridged_names import BridgeTopic, local_name, remote_name
from penstock.doors.bridge.conversation import Conversation
from penstock.model.errors import UnavailableError
from penstock.model.limits import NAME_BYTES_MAX
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.offers import Offers
from penstock.mqtt.packets import Ack, Puback, Pubcomp, Publish, Pubrec, Pubrel
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import FAILURE, Reason, describe

# A message that was refused for one of these is sent again later, in a new connection.
RETRIED: Final = frozenset({Reason.QUOTA_EXCEEDED, Reason.UNSPECIFIED_ERROR})


@dataclass(slots=True)
class Counts:
    """What a bridge has carried since the broker started."""

    forwarded: int = 0  # acknowledged by the other broker; at QoS 0: sent
    received: int = 0  # stored here; at QoS 0: taken
    refused: int = 0  # dropped, because a broker refused them for good


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
        self._topics = topics
        self._local = local
        self._remote = remote
        self._offers = offers
        self._counts = counts
        self._on_refused = on_refused  # told by whom, and why
        self._releasing: set[int] = set()
        self._released: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def release(self, packet_ids: list[int]) -> None:
        """The other broker has lost its session: these ids of QoS 2 messages are free again."""
        if not packet_ids:
            return
        self._releasing.update(packet_ids)
        for packet_id in packet_ids:
            self._local.send(Pubrel(packet_id))
        waited: list[asyncio.Future[Any]] = [self._released, self._local.ended]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)

    # From this broker

    def from_local(self, packet: Publish | Ack) -> None:
        if isinstance(packet, Publish):
            self._forward(packet)
        elif packet.reason >= FAILURE and isinstance(packet, Puback | Pubrec):
            self._refuse_received(packet)
        elif isinstance(packet, Pubcomp) and packet.packet_id in self._releasing:
            self._releasing.discard(packet.packet_id)
            if not self._releasing and not self._released.done():
                self._released.set_result(None)
        else:
            if isinstance(packet, Puback | Pubrec):
                self._counts.received += 1
            self._remote.send(type(packet)(packet.packet_id))

    def _forward(self, message: Publish) -> None:
        name = remote_name(self._topics, message.name)
        is_retained = message.retain and self._offers.is_retaining
        properties = message.properties if self._remote.version == MQTT_5 else NO_PROPERTIES
        message = replace(message, name=name, retain=is_retained, properties=properties)
        problem = self._problem(message)
        data = b"" if problem else encode(message, self._remote.version)
        if len(data) > self._offers.packet_bytes_max:
            problem = f"a packet of {len(data)} bytes is larger than it allows"
        if problem:
            if name:  # else nobody asked for it: a filter that was removed from the settings
                self._counts.refused += 1
                self._on_refused(self._remote.whom, problem)
            self._answer(message, self._local, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
            return
        self._remote.send_bytes(data)
        self._counts.forwarded += not message.qos

    def _problem(self, message: Publish) -> str:
        """Why the other broker would not take a message; '' if it does."""
        if not message.name:
            return "no topic of the bridge has this name"
        if len(message.name.encode()) > NAME_BYTES_MAX:
            return f"the name is longer than {NAME_BYTES_MAX} bytes with its prefix"
        if message.qos > self._offers.qos_max:
            return f"QoS {message.qos} is higher than it allows"
        return ""

    def _refuse_received(self, answer: Puback | Pubrec) -> None:
        """A message of the other broker was not stored here."""
        why = answer.properties.reason_string or describe(answer.reason)
        if answer.reason in RETRIED:
            self._local.end(UnavailableError(f"a received message was not stored: {why}"))
            return
        self._counts.refused += 1
        self._on_refused(self._local.whom, why)
        self._remote.send(type(answer)(answer.packet_id))

    # From the other broker

    def from_remote(self, packet: Publish | Ack) -> None:
        if isinstance(packet, Publish):
            self._take(packet)
            return
        if isinstance(packet, Puback | Pubrec):
            if packet.reason >= FAILURE:
                self._refuse_forwarded(packet)
                return
            self._counts.forwarded += 1
        self._local.send(type(packet)(packet.packet_id))

    def _take(self, message: Publish) -> None:
        name = local_name(self._topics, message.name)
        if not name or len(name.encode()) > NAME_BYTES_MAX:
            self._counts.refused += 1
            self._on_refused(self._local.whom, "no topic of the bridge has the name of a message")
            self._answer(message, self._remote, Reason.SUCCESS)
            return
        properties = _without_identifiers(message.properties)
        self._local.send(replace(message, name=name, properties=properties))
        self._counts.received += not message.qos

    def _refuse_forwarded(self, answer: Puback | Pubrec) -> None:
        why = answer.properties.reason_string or describe(answer.reason)
        if answer.reason in RETRIED:
            self._remote.end(
                UnavailableError(f"{self._remote.whom} did not store a message: {why}")
            )
            return
        self._counts.refused += 1
        self._on_refused(self._remote.whom, why)
        self._local.send(type(answer)(answer.packet_id, answer.reason))

    def _answer(self, message: Publish, to: Conversation, reason: Reason) -> None:
        """Be done with a message that does not pass."""
        if message.qos:
            to.send((Puback if message.qos == 1 else Pubrec)(message.packet_id, reason))


def _without_identifiers(properties: Properties) -> Properties:
    """Those of the other broker are about our subscriptions there."""
    if not properties.subscription_identifiers:
        return properties
    return replace(properties, subscription_identifiers=())
