"""What a client publishes, as the broker takes it: checked, and still in one piece.

Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from penstock.broker.exchange import Exchange
from penstock.broker.runs import Run
from penstock.doors.mqtt.encoding import stored_headers
from penstock.model.limits import HEADERS_BYTES_MAX, NAME_LEVELS_MAX
from penstock.mqtt.errors import ProtocolViolation
from penstock.mqtt.reasons import Reason
from penstock.mqtt.scanner import Chunk, PublishRun


def published_run(chunk: Chunk, item: PublishRun, name: bytes, exchange: Exchange) -> Run:
    """The messages of consecutive PUBLISH packets; ProtocolViolation if they break a bound.

    `name` is the packets' own, or what their topic alias stands for.
    """
    first, end = item.first_message, item.end_message
    if name.count(b"/") >= NAME_LEVELS_MAX:
        raise ProtocolViolation(
            Reason.TOPIC_NAME_INVALID, f"a name of more than {NAME_LEVELS_MAX} levels"
        )
    bytes_max = exchange.payload_bytes_max
    if item.packet_bytes_max > bytes_max and max(chunk.payload_lengths[first:end]) > bytes_max:
        raise ProtocolViolation(
            Reason.PACKET_TOO_LARGE, f"a message of more than {bytes_max} bytes"
        )
    start = item.start
    run = Run(
        name.decode(),
        chunk.data[start : item.end],
        [at - start for at in chunk.payload_starts[first:end]],
        chunk.payload_lengths[first:end],
        item.first_byte >> 1 & 3,
        item.first_byte & 1 == 1,
    )
    if item.property_bytes:
        _add_properties(run, item, exchange)
    return run


def _add_properties(run: Run, item: PublishRun, exchange: Exchange) -> None:
    if len(item.property_bytes) > HEADERS_BYTES_MAX:
        raise ProtocolViolation(
            Reason.PACKET_TOO_LARGE, f"properties of more than {HEADERS_BYTES_MAX} bytes"
        )
    run.headers = stored_headers(item.properties)
    expiry_s = item.properties.message_expiry_interval
    if expiry_s is not None:
        run.expires_at = exchange.engine.clock.now_us() + expiry_s * 1_000_000
