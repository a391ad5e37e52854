"""Kinds of subscriptions: one that ten clients share, and a session with a thousand filters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from bench.measure import Bar, Row
from bench.mqtt.flows import Load, acknowledged, stream
from bench.mqtt.rows import OUTSTANDING, compare
from bench.mqtt.servers import CEILING, Server, servers
from bench.mqtt.wire import (
    NAME,
    Receivers,
    Sender,
    connect,
    publish_packet,
    subscribe,
    subscribe_many,
)
from bench.run import Bench

MEMBERS: Final = 10
SHARED_BATCH: Final = 60  # packets of one send: the same number for each member
SHARED: Final = f"$share/bench/{NAME}"
WINDOW: Final = 100
FILTERS: Final = 1_000
REPORTED: Final = Bar(1.0, is_required=False)


def shared_rows(bench: Bench) -> Iterator[Row]:
    """One publisher, and members of which one gets each message."""
    packet = publish_packet()
    load = Load(packet * SHARED_BATCH, SHARED_BATCH, 1, len(packet), OUTSTANDING)

    def stream_turn(server: Server) -> float:
        receivers = Receivers([subscribe(server, SHARED) for _ in range(MEMBERS)])
        publisher = Sender(connect(server), load.blob)
        try:
            return stream([publisher], receivers, load, bench.turn_s)
        finally:
            receivers.close()
            publisher.close()

    def window_turn(server: Server) -> float:
        with ExitStack() as stack:
            readers = [stack.enter_context(subscribe(server, SHARED, 1)) for _ in range(MEMBERS)]
            return acknowledged(server, NAME, 1, WINDOW, readers)(bench.turn_s)

    scenario = f"shared subscription, QoS 0, 1 to {MEMBERS} members, {SHARED_BATCH} packets a send"
    with servers(bench, len(packet), splits=True) as running:
        yield compare(bench, scenario, running, stream_turn, REPORTED)
    scenario = f"shared subscription, QoS 1, 1 to {MEMBERS} members, window {WINDOW}, fsync"
    with servers(bench, len(packet)) as running:
        del running[CEILING]  # it knows no shares of packets with ids
        yield compare(bench, scenario, running, window_turn, REPORTED)


def filters_row(bench: Bench) -> Iterator[Row]:
    """One client with many filters, each of which matches one of the names in turn."""
    numbers = range(FILTERS)
    packets = [publish_packet(f"plant/{number:03}/temp") for number in numbers]
    load = Load(b"".join(packets), FILTERS, 1, len(packets[0]), OUTSTANDING)

    def turn(server: Server) -> float:
        receivers = Receivers([subscribe_many(server, [f"plant/{n:03}/+" for n in numbers])])
        publisher = Sender(connect(server), load.blob)
        try:
            return stream([publisher], receivers, load, bench.turn_s)
        finally:
            receivers.close()
            publisher.close()

    scenario = f"QoS 0, {FILTERS:,} names to a session with {FILTERS:,} filters"
    with servers(bench, len(packets[0])) as running:
        del running[CEILING]  # it would count each SUBSCRIBE as another reader
        yield compare(bench, scenario, running, turn, REPORTED)
