"""The rows of the data plane. Each starts its brokers anew and lets them take turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from bench.measure import Bar, Row, alternate, engine_figures
from bench.mqtt.flows import IDS, Load, Lost, acknowledged, ingest, stream
from bench.mqtt.paced import RATE, Paced, idle_bytes, paced
from bench.mqtt.servers import CEILING, MOSQUITTO_NAME, Server, servers
from bench.mqtt.wire import (
    NAME,
    Receivers,
    Sender,
    connect,
    publish_packet,
    reading_packets,
    subscribe,
)
from bench.run import Bench
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.properties import Properties

BATCH: Final = 64  # packets of one send
OUTSTANDING: Final = 8_192
OUTSTANDING_FAN: Final = 512
CROWD: Final = 100
NAMES: Final = 50
CEILING_FACTOR_MIN: Final = 1.5
LOOSE_TOPIC: Final = "loose"
PROPERTIES: Final = Properties(
    content_type="application/json", user_properties=(("site", "north"), ("unit", "C"))
)

Turn = Callable[[Server], float]


def compare(
    bench: Bench,
    scenario: str,
    running: Mapping[str, Server],
    turn: Turn,
    bar: Bar | None,
    unit: str = "/s",
    keep: dict[str, list[float]] | None = None,
) -> Row:
    """Let all servers take turns; Penstock's engines are compared with Mosquitto.

    `keep` is given what every turn reached.
    """
    losses: dict[str, str] = {}
    cpu_us: dict[str, list[float]] = {name: [] for name in running}

    def taking(server: Server) -> float:
        for one in running.values():
            one.wait_quiet()
        cpu_s = server.cpu_s()
        begin_s = time.perf_counter()
        try:
            result = turn(server)
        except Lost as lost:
            losses[server.name] = str(lost)
            return 1e-9
        messages = result * (time.perf_counter() - begin_s)
        cpu_us[server.name].append((server.cpu_s() - cpu_s) / messages * 1e6)
        return result

    turns = {name: (lambda server=server: taking(server)) for name, server in running.items()}
    taken = alternate(turns, bench.rounds)
    peer = taken[MOSQUITTO_NAME]
    engines = [one.name for one in bench.engines]
    figures = engine_figures(engines, taken, peer)
    if keep is not None:
        keep.update(taken)
    said = [f"{name} LOST: {text}" for name, text in losses.items()]
    if unit == "/s":
        costs = ", ".join(f"{name} {median(taken):.2f}" for name, taken in cpu_us.items() if taken)
        said.append(f"processor time of a message, µs: {costs}")
    if CEILING in taken:
        ceiling = median(taken[CEILING])
        said.append(f"generator's ceiling {ceiling:,.0f} {unit}")
        best = max(figure.value for figure in figures.values())
        if unit == "/s" and ceiling < CEILING_FACTOR_MIN * best:
            said[-1] += ", under 1.5x the result: the figure is a lower bound"
    return Row(scenario, unit, figures, (MOSQUITTO_NAME, median(peer)), bar, tuple(said))


def _stream_turn(
    bench: Bench,
    senders: int,
    filters: list[str],
    load: Load,
    spin: int = 1,
    version: int = MQTT_3_1_1,
    reader_versions: tuple[int, ...] = (),
) -> Turn:
    versions = reader_versions or (version,) * len(filters)

    def turn(server: Server) -> float:
        readers = [
            subscribe(server, filter, 0, one) for filter, one in zip(filters, versions, strict=True)
        ]
        receivers = Receivers(readers)
        publishers = [Sender(connect(server, version), load.blob) for _ in range(senders)]
        try:
            return stream(publishers, receivers, load, bench.turn_s, spin)
        finally:
            receivers.close()
            for publisher in publishers:
                publisher.close()

    return turn


def plain_rows(bench: Bench) -> Iterator[Row]:
    """QoS 0 from one or many to one."""
    packet = publish_packet()
    size = len(packet)
    batched = Load(packet * BATCH, BATCH, 1, size, OUTSTANDING)
    single = Load(packet, 1, 1, size, OUTSTANDING)
    fan_in = Bar(10, goal=30)
    cases = [
        ("QoS 0, 1 to 1, 64 packets a send", 1, batched, 1, fan_in),
        ("QoS 0, 1 to 1, one packet a send", 1, single, 16, Bar(1.0, is_required=False)),
        (f"QoS 0, {CROWD} to 1, 64 packets a send", CROWD, batched, 1, fan_in),
        (f"QoS 0, {CROWD} to 1, one packet a send", CROWD, single, 16, Bar(1.5, goal=2.5)),
    ]
    for scenario, senders, load, spin, bar in cases:
        with servers(bench, size) as running:
            turn = _stream_turn(bench, senders, [NAME], load, spin)
            yield compare(bench, scenario, running, turn, bar)


def fan_out_rows(bench: Bench) -> Iterator[Row]:
    """QoS 0 from one to many, as fast as it goes and one message at a time."""
    packet = publish_packet()
    size = len(packet)
    batched = Load(packet * BATCH, BATCH, CROWD, size, OUTSTANDING_FAN)
    single = Load(packet, 1, CROWD, size, 1)
    cases = [
        (f"QoS 0, 1 to {CROWD}, 64 packets a send", batched, Bar(50, goal=150)),
        (
            f"QoS 0, 1 to {CROWD}, one message in flight",
            single,
            Bar(1.3, is_required=False, goal=1.6),
        ),
    ]
    for scenario, load, bar in cases:
        with servers(bench, size) as running:
            turn = _stream_turn(bench, 1, [NAME] * CROWD, load)
            yield compare(bench, scenario, running, turn, bar)


def many_names_row(bench: Bench) -> Iterator[Row]:
    """Consecutive packets never share a name: runs have one message."""
    names = [f"bench/{number:02}" for number in range(NAMES)]
    packets = [publish_packet(name) for name in names]
    size = len(packets[0])
    load = Load(b"".join(packets), NAMES, 1, size, OUTSTANDING)
    with servers(bench, size, splits=True) as running:
        turn = _stream_turn(bench, 1, names, load)
        yield compare(
            bench, f"QoS 0, {NAMES} names to {NAMES} subscribers", running, turn, Bar(5, goal=15)
        )


def append_s(directory: Path, length: int, turn_s: float) -> float:
    """The time of one pwrite of so much at the end of a file and its fdatasync, mean of a turn."""
    path = directory / "fdatasync"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    data = os.urandom(length)
    count = 0
    begin = time.perf_counter()
    end_s = begin + turn_s
    while time.perf_counter() < end_s:
        os.pwrite(fd, data, count * length)
        os.fdatasync(fd)
        count += 1
    taken_s = time.perf_counter() - begin
    os.close(fd)
    path.unlink()
    return taken_s / count


def _acknowledged_turn(
    bench: Bench, name: str, connections: int, window: int, *, reads: bool, per_send: int = IDS
) -> Turn:
    def turn(server: Server) -> float:
        with ExitStack() as stack:
            readers = [stack.enter_context(subscribe(server, name, 1))] if reads else []
            load = acknowledged(server, name, connections, window, readers, per_send=per_send)
            return load(bench.turn_s)

    return turn


def acknowledged_rows(bench: Bench) -> Iterator[Row]:
    """QoS 1 from one to one. Penstock acknowledges what is on disk, Mosquitto what is in memory."""
    size = len(publish_packet(qos=1, packet_id=1))
    window = 100
    with servers(bench, size, acks=True) as running:
        turn = _acknowledged_turn(bench, NAME, 1, window, reads=True)
        syncs = []

        def noting(server: Server) -> float:
            if server.name == MOSQUITTO_NAME:
                syncs.append(append_s(bench.directory, window * size, bench.turn_s / 4))
            return turn(server)

        row = compare(bench, "QoS 1, 1 to 1, window 100, fsync", running, noting, Bar(3, goal=8))
        yield _with_sync_bar(row, window, median(syncs))
    yield from _one_in_flight_rows(bench, size)
    for reads, text in ((True, ""), (False, ", nobody reads")):
        with servers(bench, size, acks=True) as running:
            turn = _acknowledged_turn(bench, NAME, 10, 10, reads=reads, per_send=1)
            scenario = f"QoS 1, 10 clients × 10 in flight, one packet a send, fsync{text}"
            yield compare(bench, scenario, running, turn, Bar(1.2, goal=2))


def _one_in_flight_rows(bench: Bench, size: int) -> Iterator[Row]:
    """Each message waits for the one before it: synced, and left to the operating system."""
    rates: dict[str, list[float]] = {}
    loops: list[float] = []
    with servers(bench, size, acks=True) as running:
        turn = _acknowledged_turn(bench, NAME, 1, 1, reads=True)

        def noting(server: Server) -> float:
            if server.name == MOSQUITTO_NAME:
                loops.append(1 / append_s(bench.directory, size, bench.turn_s))
            return turn(server)

        yield compare(bench, "QoS 1, 1 to 1, window 1, fsync", running, noting, None, keep=rates)
    yield Row(
        "QoS 1, 1 to 1, window 1, fsync, against a bare loop of pwrite and fdatasync",
        "/s",
        engine_figures([one.name for one in bench.engines], rates, loops),
        ("bare loop", median(loops)),
        Bar(0.6, is_required=False, goal=0.9),
    )
    with servers(bench, size, acks=True, loose_topic=LOOSE_TOPIC) as running:
        turn = _acknowledged_turn(bench, f"{LOOSE_TOPIC}/one", 1, 1, reads=True)
        scenario = "QoS 1, 1 to 1, window 1, level os"
        yield compare(bench, scenario, running, turn, Bar(0.55, goal=1))


def _with_sync_bar(row: Row, window: int, sync_s: float) -> Row:
    """The bar is 3x Mosquitto, or 70 % of what one sync per window allows if that is lower."""
    assert row.reference is not None
    allowed = 0.7 * window / sync_s
    limit = min(3.0, allowed / row.reference[1])
    note = (
        f"pwrite and fdatasync of the same run {sync_s * 1e6:,.0f} µs; "
        f"70 % of {window} ÷ that is {allowed:,.0f} /s"
    )
    return Row(
        row.scenario,
        row.unit,
        row.figures,
        row.reference,
        Bar(round(limit, 3), goal=8),
        (*row.notes, note),
    )


def ingest_rows(bench: Bench) -> Iterator[Row]:
    """Nobody reads: what taking and storing alone costs."""
    packet = publish_packet()
    # Payloads differ, as a disk that stores them compressed would otherwise have it too easy.
    readings = reading_packets(BATCH * 150)
    connections = 16

    def turn(server: Server) -> float:
        sockets = [connect(server) for _ in range(connections)]
        try:
            taken = ingest(sockets, readings, len(packet) * BATCH, bench.turn_s)
            return taken / len(packet)
        finally:
            for sock in sockets:
                sock.close()

    with servers(bench, len(packet)) as running:
        scenario = f"ingest QoS 0, {connections} connections"
        yield compare(bench, scenario, running, turn, Bar(8, goal=20))
    size = len(publish_packet(qos=1, packet_id=1))
    with servers(bench, size, acks=True) as running:
        scenario = f"ingest QoS 1, {connections} connections × 100 in flight, fsync"
        windowed = _acknowledged_turn(bench, NAME, connections, 100, reads=False)
        yield compare(bench, scenario, running, windowed, Bar(3, goal=8))


def paced_rows(bench: Bench) -> Iterator[Row]:
    """Latency and processor time at a steady rate."""
    turn_s = 2.0 if bench.is_quick else 5.0
    found: dict[str, list[Paced]] = {}
    with servers(bench, len(publish_packet())) as running:

        def turn(server: Server) -> float:
            result = paced(server, turn_s)
            found.setdefault(server.name, []).append(result)
            return result.p99_us

        bar = Bar(1.3, at_most=True, goal=1)
        yield compare(bench, f"p99 at {RATE:,} messages a second, QoS 0", running, turn, bar, "µs")
    names = [one.name for one in bench.engines]
    p50 = {name: [one.p50_us for one in taken] for name, taken in found.items()}
    cpu = {name: [one.cpu_us for one in taken] for name, taken in found.items()}
    yield Row(
        f"p50 at {RATE:,} messages a second, QoS 0",
        "µs",
        engine_figures(names, p50, p50[MOSQUITTO_NAME]),
        (MOSQUITTO_NAME, median(p50[MOSQUITTO_NAME])),
    )
    yield Row(
        f"processor time of a message at {RATE:,} a second",
        "µs",
        engine_figures(names, cpu, cpu[MOSQUITTO_NAME]),
        (MOSQUITTO_NAME, median(cpu[MOSQUITTO_NAME])),
        Bar(1.35, at_most=True, goal=1),
    )


def memory_row(bench: Bench) -> Iterator[Row]:
    """Fresh brokers each round: memory once taken is reused."""
    connections = 500 if bench.is_quick else 2_000
    grown: dict[str, list[float]] = {}
    for _ in range(bench.rounds):
        with servers(bench, len(publish_packet())) as running:
            for name, server in running.items():
                if name != CEILING:
                    grown.setdefault(name, []).append(idle_bytes(server, connections))
    limit_bytes = 3 * 1024.0
    limits = [limit_bytes] * len(grown[MOSQUITTO_NAME])
    yield Row(
        f"memory of an idle connection, of {connections:,} (bar: 3 KiB)",
        "B",
        engine_figures([one.name for one in bench.engines], grown, limits),
        (MOSQUITTO_NAME, median(grown[MOSQUITTO_NAME])),
        Bar(1.0, at_most=True, goal=0.33),
        ("the ratio is to the bar of 3 KiB, not to Mosquitto",),
    )


def property_rows(bench: Bench) -> Iterator[Row]:
    """MQTT 5 properties on every message against none, for one reader and for mixed versions."""
    bare = publish_packet(version=MQTT_5)
    rich = publish_packet(version=MQTT_5, properties=PROPERTIES)
    old = len(publish_packet())
    with servers(bench, len(bare)) as running:
        for text, versions in (("", (MQTT_5,)), (", v3 and v5 readers", (MQTT_3_1_1, MQTT_5))):
            # A message is received once all its readers have it: their sizes differ.
            others = old if MQTT_3_1_1 in versions else 0
            loads = {
                "none": Load(bare * BATCH, BATCH, 1, len(bare) + others, OUTSTANDING),
                "all": Load(rich * BATCH, BATCH, 1, len(rich) + others, OUTSTANDING),
            }
            turns = {}
            for what, load in loads.items():
                readers = [NAME] * len(versions)
                turn = _stream_turn(bench, 1, readers, load, 1, MQTT_5, versions)
                for name, server in running.items():
                    if name != CEILING:
                        turns[f"{name} {what}"] = partial(turn, server)
            taken = alternate(turns, bench.rounds)
            rich_rates, bare_rates = (
                {name: taken[f"{name} {what}"] for name in running if name != CEILING}
                for what in ("all", "none")
            )
            names = [one.name for one in bench.engines]
            yield Row(
                f"MQTT 5 properties on every message against none{text}",
                "/s",
                engine_figures(names, rich_rates, bare_rates),
                ("none", median(bare_rates[names[-1]])),
                Bar(0.7, is_required=False),
                (
                    f"Mosquitto {median(rich_rates[MOSQUITTO_NAME]):,.0f} /s with, "
                    f"{median(bare_rates[MOSQUITTO_NAME]):,.0f} /s without",
                ),
            )
