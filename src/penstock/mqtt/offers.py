"""What a server said about itself in its CONNACK, and what we may therefore send it.

A client that sends more than it was offered breaks the protocol; here it is told so before anything
leaves, with the value, the rule and the way out.
"""

from __future__ import annotations

from penstock.model.errors import RefusedError
from penstock.mqtt.kinds import PACKET_ID_MAX, REMAINING_LENGTH_MAX
from penstock.mqtt.packets import Publish
from penstock.mqtt.properties import NO_PROPERTIES, Properties

_HEAD_BYTES = 5  # of the largest packet: its first byte and its length


class Offers:
    """The limits of one connection; before MQTT 5, and where nothing was said, MQTT's own."""

    def __init__(self, said: Properties = NO_PROPERTIES) -> None:
        self.receive_max = said.receive_maximum or PACKET_ID_MAX
        self.packet_bytes_max = said.maximum_packet_size or REMAINING_LENGTH_MAX + _HEAD_BYTES
        self.qos_max = 2 if said.maximum_qos is None else said.maximum_qos
        self.is_retaining = said.retain_available != 0
        self._alias_max = said.topic_alias_maximum or 0

    def check(self, message: Publish) -> None:
        """RefusedError if the server said that it does not take this."""
        if message.qos > self.qos_max:
            raise RefusedError(
                f"QoS {message.qos} is higher than the server allows (QoS {self.qos_max}): "
                "publish with a lower --qos"
            )
        if message.retain and not self.is_retaining:
            raise RefusedError(
                "the server does not support retained messages: publish without --retain"
            )
        alias = message.properties.topic_alias
        if alias is not None and alias > self._alias_max:
            raise RefusedError(
                f"topic alias {alias} is higher than the server allows ({self._alias_max}): "
                "use a lower alias or none"
            )

    def check_size(self, packet_bytes: int) -> None:
        """RefusedError if a packet is larger than the server said it takes."""
        if packet_bytes > self.packet_bytes_max:
            raise RefusedError(
                f"a packet of {packet_bytes} bytes is larger than the server allows "
                f"({self.packet_bytes_max}): send a shorter message"
            )
