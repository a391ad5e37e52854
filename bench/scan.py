"""What does reading and writing a message cost in the codec alone, with no socket and no log?

Run `python -m bench scan`: nanoseconds of a message, best of several rounds, for 64 KiB chunks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from bench.engines import workers
from bench.measure import Figure, Row
from bench.run import Bench
from penstock.mqtt import runs, scanner
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5, PacketType, first_byte, publish_first_byte
from penstock.mqtt.packets import Packet, Puback, Publish
from penstock.mqtt.properties import NO_PROPERTIES, Properties

CHUNK_BYTES = 64 * 1024
PACKET_BYTES_MAX = 1 << 20
ROUNDS = 15
NAME = "sensors/42/temp"
PROPERTIES = Properties(content_type="application/json", user_properties=(("site", "north"),))


def best_ns(job: Callable[[], object], messages: int) -> float:
    """Nanoseconds per message of the fastest round, each about 10 ms long."""
    job()
    begin = time.perf_counter_ns()
    job()
    repeats = max(1, 10_000_000 // max(1, time.perf_counter_ns() - begin))
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(repeats):
            job()
        best = min(best, (time.perf_counter_ns() - begin) / (repeats * messages))
    return best


def publishes(
    version: int,
    qos: int = 0,
    names: int = 1,
    properties: Properties = NO_PROPERTIES,
    sizes: tuple[int, ...] = (100,),
) -> tuple[bytes, int]:
    """A chunk of PUBLISH packets and how many they are."""
    out = bytearray()
    count = 0
    while len(out) < CHUNK_BYTES:
        name = NAME if names == 1 else f"{NAME}/{count % names}"
        packet: Packet = Publish(
            name,
            bytes(sizes[count % len(sizes)]),
            qos,
            packet_id=count + 1 if qos else 0,
            properties=properties,
        )
        out += encode(packet, version)
        count += 1
    return bytes(out), count


def scan_costs() -> dict[str, float]:
    """What reading costs."""
    mixed = (80, 100, 120, 140)
    cases = [
        ("scan QoS 0, one name, 100 B", MQTT_3_1_1, publishes(MQTT_3_1_1)),
        ("scan QoS 1, one name, 100 B", MQTT_3_1_1, publishes(MQTT_3_1_1, 1)),
        ("scan QoS 0, one name, 100 B, MQTT 5", MQTT_5, publishes(MQTT_5)),
        ("scan QoS 1, one name, 100 B, MQTT 5", MQTT_5, publishes(MQTT_5, 1)),
        (
            "scan QoS 0, one name, 100 B, MQTT 5, same properties",
            MQTT_5,
            publishes(MQTT_5, properties=PROPERTIES),
        ),
        ("scan QoS 0, one name, 80-140 B", MQTT_3_1_1, publishes(MQTT_3_1_1, sizes=mixed)),
        ("scan QoS 0, 50 names in turn, 100 B", MQTT_3_1_1, publishes(MQTT_3_1_1, names=50)),
        (
            "scan QoS 0, 50 names in turn, MQTT 5, same properties",
            MQTT_5,
            publishes(MQTT_5, names=50, properties=PROPERTIES),
        ),
    ]
    costs = {
        what: best_ns(partial(scanner.scan, data, 0, version, PACKET_BYTES_MAX), count)
        for what, version, (data, count) in cases
    }
    acks = b"".join(encode(Puback(i), MQTT_3_1_1) for i in range(1, 1001))
    costs["scan PUBACKs"] = best_ns(
        partial(scanner.scan, acks, 0, MQTT_3_1_1, PACKET_BYTES_MAX), 1000
    )
    return costs


def write_costs() -> dict[str, float]:
    """What writing costs."""
    data, count = publishes(MQTT_3_1_1)
    chunk = scanner.scan(data, 0, MQTT_3_1_1, PACKET_BYTES_MAX)
    ids = list(range(1, count + 1))

    def encode_run(qos: int) -> runs.EncodedRun:
        return runs.encode_publish_run(
            publish_first_byte(qos),
            NAME.encode(),
            b"\0",
            data,
            chunk.payload_starts,
            chunk.payload_lengths,
            0,
            count,
        )

    run = encode_run(1)
    puback = first_byte(PacketType.PUBACK)
    return {
        "encode a run for another class, QoS 0": best_ns(partial(encode_run, 0), count),
        "encode a run for another class, QoS 1": best_ns(partial(encode_run, 1), count),
        "put packet ids into it": best_ns(partial(runs.put_packet_ids, run, 0, ids), count),
        "encode PUBACKs": best_ns(partial(runs.encode_acks, puback, ids), count),
    }


def measure(bench: Bench, only: str) -> Iterator[Row]:
    """Both engines side by side."""
    with workers(bench.engines) as started:
        for function in ("scan_costs", "write_costs"):
            found = {name: one.call(f"bench.scan:{function}") for name, one in started.items()}
            for what in next(iter(found.values())):
                figures = {name: Figure(costs[what]) for name, costs in found.items()}
                yield Row(what, "ns", figures)
