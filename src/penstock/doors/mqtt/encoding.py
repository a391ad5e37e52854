"""How messages look to each kind of MQTT reader, and how properties are stored as headers.

An encoding is a version, QoS, retain rule and set of subscription identifiers. There is one object
per kind, so readers are grouped by identity and a run is encoded once for all of a kind.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from penstock.core.delivery.run import Run
from penstock.model.clock import Clock
from penstock.model.record import Headers
from penstock.mqtt.encode import property_section
from penstock.mqtt.kinds import MQTT_5, PacketType, publish_first_byte
from penstock.mqtt.primitives import read_varint
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.runs import EncodedRun, encode_publish_run, put_packet_ids

CONTENT_TYPE: Final = "mqtt.content-type"
RESPONSE_TOPIC: Final = "mqtt.response-topic"
CORRELATION_DATA: Final = "mqtt.correlation-data"  # base64: headers are text
PAYLOAD_FORMAT: Final = "mqtt.payload-format"
_RESERVED: Final = (CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA, PAYLOAD_FORMAT)
_ESCAPE: Final = "mqtt.user."  # before the key of a user property that is called like one of these
_INDICATORS: Final = {"0": 0, "1": 1}  # what else the header says was made up
TEXT_BYTES_MAX: Final = 65_535  # of one string or binary field (MQTT 5 §1.5.4)


def stored_headers(properties: Properties) -> Headers:
    """User properties and the properties that travel with a message, as a record's headers."""
    pairs = [
        (_ESCAPE + key if key in _RESERVED or key.startswith(_ESCAPE) else key, value)
        for key, value in properties.user_properties
    ]
    if properties.content_type is not None:
        pairs.append((CONTENT_TYPE, properties.content_type))
    if properties.response_topic is not None:
        pairs.append((RESPONSE_TOPIC, properties.response_topic))
    if properties.correlation_data is not None:
        pairs.append((CORRELATION_DATA, base64.b64encode(properties.correlation_data).decode()))
    if properties.payload_format_indicator is not None:
        pairs.append((PAYLOAD_FORMAT, str(properties.payload_format_indicator)))
    return tuple(pairs)


def _properties(run: Run, identifiers: tuple[int, ...], clock: Clock) -> Properties:
    """What a message of the run contains besides its payload."""
    if not run.headers and not run.until_us and not identifiers:
        return NO_PROPERTIES
    reserved: dict[str, str] = {}
    plain = []
    correlation = None
    for key, value in run.headers:
        if not _is_sayable(key) or not _is_sayable(value):
            continue  # from another door: MQTT has no way to say it
        if key == CORRELATION_DATA:
            correlation = _decode(value)
        elif key == RESPONSE_TOPIC and ("+" in value or "#" in value or not value):
            continue  # made up: it can be no name
        elif key in _RESERVED:
            reserved[key] = value
        else:
            plain.append((key.removeprefix(_ESCAPE), value))
    left_s = None
    if run.until_us:
        # Only whole seconds that it waited are taken off [MQTT-3.3.2-6]: rounded up.
        left_s = max(-((clock.steady_us() - run.until_us) // 1_000_000), 0)
    return Properties(
        payload_format_indicator=_INDICATORS.get(reserved.get(PAYLOAD_FORMAT, "")),
        message_expiry_interval=left_s,
        content_type=reserved.get(CONTENT_TYPE),
        response_topic=reserved.get(RESPONSE_TOPIC),
        correlation_data=correlation,
        subscription_identifiers=identifiers,
        user_properties=tuple(plain),
    )


def _is_sayable(text: str) -> bool:
    """May this stand in an MQTT packet (MQTT 5 §1.5.4)?"""
    return "\0" not in text and len(text.encode()) <= TEXT_BYTES_MAX


def _decode(text: str) -> bytes | None:
    """Correlation data from its header; None if somebody else made the header up."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) <= TEXT_BYTES_MAX else None


def packets_within(data: bytes, packet_bytes_max: int) -> tuple[bytes, int]:
    """Those of the packets in `data` that are not too long, and how many are."""
    kept = []
    too_large = 0
    start = 0
    while start < len(data):
        length, body = read_varint(data, start + 1, len(data))
        end = body + length
        if end - start > packet_bytes_max:
            too_large += 1
        else:
            kept.append(data[start:end])
        start = end
    return b"".join(kept), too_large


def with_ids_within(
    encoded: EncodedRun, first: int, packet_ids: list[int], packet_bytes_max: int
) -> tuple[list[bytes], list[int]]:
    """The packets from `first` on that are not too long, one by one; and the ids of the others."""
    packets, too_large = [], []
    for at, packet_id in enumerate(packet_ids, first):
        start = encoded.packet_ends[at - 1] if at else 0
        if encoded.packet_ends[at] - start > packet_bytes_max:
            too_large.append(packet_id)
        else:
            packets.append(put_packet_ids(encoded, at, [packet_id]))
    return packets, too_large


class MqttEncoding:
    """One kind of reader. Made by `Encodings`, compared by identity."""

    __slots__ = ("_clock", "_first_bytes", "_identifiers", "_retain_as_published", "qos", "version")

    def __init__(
        self,
        version: int,
        qos: int,
        retain_as_published: bool,
        identifiers: tuple[int, ...],
        clock: Clock,
    ) -> None:
        self.version = version
        self.qos = qos
        self._first_bytes = (publish_first_byte(qos, False), publish_first_byte(qos, True))
        self._retain_as_published = retain_as_published
        self._identifiers = identifiers
        self._clock = clock

    def forward_bytes(self, run: Run) -> bytes:
        return self.encoded(run).raw

    def encoded(self, run: Run) -> EncodedRun:
        """The run as PUBLISH packets; packet ids, if any, are still blank."""
        if run.encoded is None:
            run.encoded = {}
        known = run.encoded.get(self)
        if known is None:
            retain = run.retain and self._retain_as_published
            section = b""
            if self.version == MQTT_5:
                properties = _properties(run, self._identifiers, self._clock)
                section = property_section(properties, PacketType.PUBLISH, MQTT_5)
            known = encode_publish_run(
                self._first_bytes[retain],
                run.name.encode(),
                section,
                data=run.data,
                payload_starts=run.starts,
                payload_lengths=run.lengths,
                first_message=0,
                end_message=run.count,
            )
            run.encoded[self] = known
        assert isinstance(known, EncodedRun)
        return known


class Encodings:
    """All kinds of readers there are."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[tuple[int, int, bool, tuple[int, ...]], MqttEncoding] = {}

    def get(
        self, version: int, qos: int, retain_as_published: bool, identifiers: tuple[int, ...]
    ) -> MqttEncoding:
        version = max(version, 4)  # 3.1 and 3.1.1 have the same PUBLISH
        key = (version, qos, retain_as_published, identifiers)
        encoding = self._known.get(key)
        if encoding is None:
            encoding = MqttEncoding(version, qos, retain_as_published, identifiers, self._clock)
            if not identifiers:  # identifiers are as many as clients like: those are not kept
                self._known[key] = encoding
        return encoding
