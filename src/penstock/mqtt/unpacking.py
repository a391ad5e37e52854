"""Chunks taken apart packet by packet: for clients, tests and whatever is not the hot path."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.mqtt.decode import decode_packet
from penstock.mqtt.kinds import PacketType
from penstock.mqtt.packets import ACKS, Packet, Publish
from penstock.mqtt.scanner import AckRun, Chunk, PublishRun


def unpack(chunk: Chunk) -> Iterator[Packet]:
    """Every packet of a chunk as an object, then its violation raised. Not for the hot path."""
    data = chunk.data
    for item in chunk.items:
        if isinstance(item, PublishRun):
            yield from _publishes(chunk, item)
        elif isinstance(item, AckRun):
            ack = ACKS[PacketType(item.first_byte >> 4)]
            for packet_id in chunk.packet_ids[item.first_id : item.end_id]:
                yield ack(packet_id)
        else:
            body = data[item.body : item.end]
            yield decode_packet(item.first_byte, body, chunk.version, chunk.sender)
    if chunk.violation is not None:
        raise chunk.violation


def _publishes(chunk: Chunk, run: PublishRun) -> Iterator[Publish]:
    name = run.name.decode()
    for index in range(run.count):
        start = chunk.payload_starts[run.first_message + index]
        length = chunk.payload_lengths[run.first_message + index]
        yield Publish(
            name=name,
            payload=chunk.data[start : start + length],
            qos=run.qos,
            retain=run.retain,
            dup=run.dup,
            packet_id=chunk.packet_ids[run.first_id + index] if run.qos else 0,
            properties=run.properties,
        )
