"""The receiving side of one connection: bytes in as they come, chunks of whole packets out.

Invariant: every byte fed is in exactly one chunk's consumed part or still held here, in order; at
most one incomplete packet is held once the version is known, so what is held is bounded by
`packet_bytes_max` plus one feed. A large packet that comes in many pieces is joined once, not
once a piece; one that comes in crumbs takes no more memory than its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.model.limits import KIB
from penstock.mqtt.decode import decode_packet
from penstock.mqtt.kinds import PacketType, Role
from penstock.mqtt.packets import ACKS, Packet, Publish
from penstock.mqtt.scanner import AckRun, Chunk, PublishRun, scan

PIECE_BYTES_MAX: Final = 4 * KIB  # smaller pieces are joined: each costs some 50 bytes


class Intake:
    """Feeds a connection's bytes to the scanner and keeps what is not complete yet.

    Start a server's with UNKNOWN_VERSION; once the CONNECT is decoded set `version` (and
    `packet_bytes_max`) and feed `b""` to go on with what the client sent behind it.
    """

    __slots__ = ("_held", "_held_bytes", "_wanted", "packet_bytes_max", "sender", "version")

    def __init__(self, version: int, packet_bytes_max: int, sender: Role = Role.CLIENT) -> None:
        self.version = version
        self.packet_bytes_max = packet_bytes_max
        self.sender = sender
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._wanted = 0

    @property
    def held_bytes(self) -> int:
        """How much is kept of packets that are not complete."""
        return self._held_bytes

    def feed(self, data: bytes) -> Chunk:
        """What is complete now. After a violation the connection is over: feed nothing more."""
        if self._held_bytes:
            held = self._held
            if len(held[-1]) + len(data) <= PIECE_BYTES_MAX:
                held[-1] += data
            else:
                held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._wanted:
                return Chunk(b"", self.version, self.packet_bytes_max, self.sender)
            data = b"".join(self._held)
        chunk = scan(data, 0, self.version, self.packet_bytes_max, self.sender)
        rest = data[chunk.consumed :]
        self._held = [rest] if rest else []
        self._held_bytes = len(rest)
        self._wanted = chunk.wanted
        return chunk


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
            name,
            chunk.data[start : start + length],
            run.qos,
            run.retain,
            run.dup,
            chunk.packet_ids[run.first_id + index] if run.qos else 0,
            run.properties,
        )
