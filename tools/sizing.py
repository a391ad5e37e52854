"""How many nodes a cluster needs: a model of what nodes cost, and a simulation that checks it.

    .venv/bin/python -m tools.sizing --clients 1e6 --rate 20e3 --readers 2

Every node follows every partition (docs/SCALE.md): a message costs each node a little, also where
nobody reads it. So adding nodes divides what publishing, delivering and connections cost, and never
what following costs. The model counts averages; clients are spread evenly over the nodes.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.model.limits import KIB, MIB

NODES_MAX: Final = 10_000  # nobody would run more
TABLE: Final = ((10e3, 1e3), (100e3, 10e3), (1e6, 20e3), (10e6, 200e3), (100e6, 200e3))


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one node, compiled, on a core of the machine that docs/SCALE.md names."""

    # Take a QoS 1 message of a client, append it, acknowledge it: ten clients with ten in flight,
    # one packet a send (`bench mqtt`: 11.5). Sixteen with a hundred in flight on Kafka take 3.4.
    publish_us: float = 12.0
    follow_us: float = 0.4  # receive a message that nobody here reads (`bench cluster`)
    decode_us: float = 1.0  # find out who here reads it, besides: an estimate
    deliver_us: float = 2.5  # send it to one of them, take the acknowledgement (`bench mqtt`: 2.0)
    record_bytes: float = 24.0  # what Kafka stores with each message besides name and payload
    # Idle: 3.3 KB of the process were measured, and the kernel's buffers are about as much.
    connection_bytes: float = 8.0 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a machine one node may use."""

    core_share: float = 0.6  # of its one core: bursts and recoveries need the rest
    connections: float = 100_000
    memory_bytes: float = 4_096.0 * MIB
    network_bytes_s: float = 125e6  # 1 Gbit/s


@dataclass(frozen=True, slots=True)
class Load:
    """What all clients do together."""

    clients: float
    rate: float  # messages published per second
    readers: float = 1.0  # clients that receive a message
    message_bytes: float = 120.0  # name and payload


@dataclass(frozen=True, slots=True)
class Use:
    """What one of the nodes uses."""

    cpu_share: float  # of a core
    connections: float
    memory_bytes: float
    network_bytes_s: float  # from Kafka, to Kafka and to clients

    def exceeded(self, limits: Limits) -> str:
        """What is too much for a node; empty if nothing is."""
        if self.cpu_share > limits.core_share:
            return "processor"
        if self.connections > limits.connections:
            return "connections"
        if self.memory_bytes > limits.memory_bytes:
            return "memory"
        return "network" if self.network_bytes_s > limits.network_bytes_s else ""


def interested(nodes: int, readers: float) -> float:
    """How many nodes have a reader of a message, on average: those that have to decode it."""
    return float(nodes * (1 - (1 - 1 / nodes) ** readers))


def use_of(load: Load, nodes: int, costs: Costs) -> Use:
    """What each of so many nodes uses."""
    cpu_us = load.rate * (
        costs.follow_us
        + costs.publish_us / nodes
        + costs.decode_us * interested(nodes, load.readers) / nodes
        + costs.deliver_us * load.readers / nodes
    )
    connections = load.clients / nodes
    followed = load.rate * (load.message_bytes + costs.record_bytes)
    sent = load.rate * load.message_bytes * (2 + load.readers) / nodes
    return Use(cpu_us / 1e6, connections, connections * costs.connection_bytes, followed + sent)


def nodes_needed(load: Load, costs: Costs, limits: Limits) -> int:
    """The smallest number of nodes that is enough; 0 if no number is."""
    below, enough = 0, 1
    while use_of(load, enough, costs).exceeded(limits):
        if enough >= NODES_MAX:
            return 0
        below, enough = enough, min(enough * 2, NODES_MAX)
    while enough - below > 1:
        middle = (below + enough) // 2
        if use_of(load, middle, costs).exceeded(limits):
            below = middle
        else:
            enough = middle
    return enough


def simulate(load: Load, nodes: int, costs: Costs, *, messages: int, seed: int) -> list[float]:
    """The processor share of each node when so many messages go to readers chosen at random."""
    chance = random.Random(seed)
    spent_us = [costs.follow_us * messages] * nodes
    for _ in range(messages):
        spent_us[chance.randrange(nodes)] += costs.publish_us
        places = [chance.randrange(nodes) for _ in range(int(load.readers))]
        for place in places:
            spent_us[place] += costs.deliver_us
        for place in set(places):
            spent_us[place] += costs.decode_us
    taken_us = messages / load.rate * 1e6
    return [one / taken_us for one in spent_us]


def rows(loads: list[Load], costs: Costs, limits: Limits) -> Iterator[tuple[str, ...]]:
    """The table for docs/SCALE.md."""
    yield (
        "clients",
        "messages/s",
        "nodes",
        "processor",
        "connections",
        "network of a node",
        "Kafka",
    )
    for load in loads:
        nodes = nodes_needed(load, costs, limits)
        if not nodes:
            why = use_of(load, NODES_MAX, costs).exceeded(limits)
            yield (
                f"{load.clients:,.0f}",
                f"{load.rate:,.0f}",
                "no number is enough",
                why,
                "",
                "",
                "",
            )
            continue
        use = use_of(load, nodes, costs)
        from_kafka = nodes * load.rate * (load.message_bytes + costs.record_bytes)
        yield (
            f"{load.clients:,.0f}",
            f"{load.rate:,.0f}",
            f"{nodes:,}",
            f"{use.cpu_share:.0%}",
            f"{use.connections:,.0f}",
            f"{use.network_bytes_s / 1e6:,.1f} MB/s",
            f"{from_kafka / 1e6:,.0f} MB/s",
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.sizing", description=__doc__)
    parser.add_argument("--clients", type=float, help="connected clients")
    parser.add_argument("--rate", type=float, help="messages published per second, by all clients")
    parser.add_argument("--readers", type=float, default=1.0, help="clients that receive a message")
    parser.add_argument("--bytes", type=float, default=120.0, help="of name and payload")
    options = parser.parse_args()
    if (options.clients is None) != (options.rate is None):
        parser.error("give --clients and --rate, or neither for the table of the documentation")
    for name in ("clients", "rate", "readers", "bytes"):
        value = getattr(options, name)
        if value is not None and not 0 < value < 1e12:
            parser.error(f"--{name} {value:g} is not possible: use a number above 0")
    return options


def main() -> int:
    options = parse()
    asked = TABLE if options.clients is None else ((options.clients, options.rate),)
    loads = [Load(clients, rate, options.readers, options.bytes) for clients, rate in asked]
    for number, row in enumerate(rows(loads, Costs(), Limits())):
        print("| " + " | ".join(row) + " |")
        if number == 0:
            print("|" + "---|" * len(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
