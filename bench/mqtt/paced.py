"""A steady 5,000 messages a second: how late they come, and what each costs the broker."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Final

from bench.mqtt.flows import Lost
from bench.mqtt.servers import Server
from bench.mqtt.wire import NAME, PAYLOAD, connect, subscribe
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1
from penstock.mqtt.packets import Publish

RATE: Final = 5_000  # messages per second
_STAMP: Final = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Paced:
    """Microseconds."""

    p50_us: float
    p99_us: float
    cpu_us: float  # of the broker, for each message


def paced(server: Server, turn_s: float) -> Paced:
    """Send on the clock's beat, receive in between; never more than one place behind the other."""
    reader = subscribe(server, NAME)
    sender = connect(server)
    packet = bytearray(encode(Publish(NAME, PAYLOAD), MQTT_3_1_1))
    size = len(packet)
    stamp_at = size - len(PAYLOAD)
    reader.setblocking(False)
    count = int(RATE * turn_s)
    delays_ns: list[int] = []
    held = b""
    cpu_s = server.cpu_s()
    begin_ns = time.perf_counter_ns()
    step_ns = 1_000_000_000 // RATE
    sent = 0
    give_up_ns = begin_ns + int((turn_s + 20) * 1e9)
    while len(delays_ns) < count:
        now_ns = time.perf_counter_ns()
        if sent < count and now_ns >= begin_ns + sent * step_ns:
            _STAMP.pack_into(packet, stamp_at, now_ns)
            sender.sendall(packet)
            sent += 1
        try:
            data = held + reader.recv(1 << 16)
        except BlockingIOError:
            if now_ns > give_up_ns:
                raise Lost(f"{count - len(delays_ns):,} of {count:,} did not come") from None
            continue
        arrived_ns = time.perf_counter_ns()
        whole = len(data) // size * size
        for at in range(stamp_at, whole, size):
            delays_ns.append(arrived_ns - _STAMP.unpack_from(data, at)[0])
        held = data[whole:]
    cpu_s = server.cpu_s() - cpu_s
    reader.close()
    sender.close()
    delays_ns.sort()
    return Paced(
        delays_ns[count // 2] / 1_000, delays_ns[count * 99 // 100] / 1_000, cpu_s / count * 1e6
    )


def idle_bytes(server: Server, connections: int) -> float:
    """What one connection that does nothing adds to the broker's resident memory."""
    warm = [connect(server) for _ in range(100)]  # tables and pools have their first size now
    before = server.resident_bytes()
    idle = [connect(server) for _ in range(connections)]
    grown = server.resident_bytes() - before
    for sock in [*warm, *idle]:
        sock.close()
    return grown / connections
