"""A real program whose disk fails one sync: publishes on, and says what was acknowledged.

Usage: fenced_child.py DIRECTORY ENDING, where ENDING is `close` or `die`.
Lines on stdout: `published TOPIC END`, `refused TOPIC MESSAGE`, `read TOPIC END`,
`committed OFFSET`, `uncommitted MESSAGE`. Syncs may fail once it has made the file that the
environment names in FAIL_WHEN.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock import Broker, PenstockError, UnavailableError

TOPICS = ("orders", "events")
ATTEMPTS = 40


def message(topic: str, offset: int) -> bytes:
    return f"{topic} {offset} ".encode() + bytes([offset % 251]) * 4_000


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def main(directory: str, ending: str) -> None:
    broker = Broker(directory, segment_bytes=64 * 1024, upkeep_s=3_600)
    for topic in TOPICS:
        broker.create_topic(topic)
        broker.subscribe("billing", topic)
    Path(os.environ["FAIL_WHEN"]).touch()
    ends = dict.fromkeys(TOPICS, 0)
    for _ in range(ATTEMPTS):
        for topic in TOPICS:
            try:
                assert broker.publish(message(topic, ends[topic]), topic) == ends[topic]
                ends[topic] += 1
                say(f"published {topic} {ends[topic]}")
            except UnavailableError as refusal:
                say(f"refused {topic} {refusal}")
            say(f"read {topic} {len(broker.read(topic))}")
        try:
            broker.consume("billing", "events", limit=1, commit=False)
            broker.commit("billing", "events")
            say(f"committed {broker.consumers('events')[0].next_offset}")
        except UnavailableError as refusal:
            say(f"uncommitted {refusal}")
    if ending == "die":
        os._exit(0)
    try:
        broker.close()
    except PenstockError as trouble:
        say(f"closed {trouble}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
