"""A real program that publishes until the disk is full, and goes on trying until it is killed.

Usage: filling_child.py DIRECTORY
Lines on stdout, each written with one system call after the acknowledgement:
`published TOPIC END`, `committed TOPIC OFFSET`, `full MESSAGE` (the refusal).
"""

from __future__ import annotations

import os
import random
import sys

from penstock import Broker, UnavailableError

TOPICS = ("orders", "loose")


def message(topic: str, offset: int) -> bytes:
    return f"{topic} {offset} ".encode() + random.Random(offset).randbytes(offset * 977 % 20_000)


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def main(directory: str) -> None:
    broker = Broker(directory, disk_free_percent_min=0, segment_bytes=1 << 20, upkeep_s=0.05)
    broker.create_topic("orders")
    broker.create_topic("loose", durability="os")
    for topic in TOPICS:
        broker.subscribe("billing", topic)
    ends = dict.fromkeys(TOPICS, 0)
    while True:
        for topic in TOPICS:
            try:
                assert broker.publish(message(topic, ends[topic]), topic) == ends[topic]
                ends[topic] += 1
                say(f"published {topic} {ends[topic]}")
            except UnavailableError as refusal:
                say(f"full {refusal}")
                if broker.consume("billing", topic, limit=1, commit=False):
                    broker.commit("billing", topic)
                    position = broker.consumers(topic)[0].next_offset
                    say(f"committed {topic} {position}")


if __name__ == "__main__":
    main(sys.argv[1])
