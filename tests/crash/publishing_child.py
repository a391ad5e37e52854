"""A real process that publishes and says on stdout what was acknowledged, until it is killed.

Usage: publishing_child.py DIRECTORY PUBLISHERS [--ack-first] [--history=URL]
Each line is `publisher sequence offset`, written with one system call after the acknowledgement.
With --ack-first it is broken on purpose: it says so before the message is handed over, which is
what a broker that acknowledges before it writes looks like from outside. With --history the topic
keeps little in its log and the rest in its history.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from penstock import AsyncBroker

PAYLOAD_BYTES = 300


def message(publisher: int, sequence: int) -> bytes:
    """Recognisable, so that any mix-up of bytes shows."""
    head = b"%d %d " % (publisher, sequence)
    return head + bytes([sequence % 251]) * (PAYLOAD_BYTES - len(head))


async def publish(broker: AsyncBroker, publisher: int, start: int, *, ack_first: bool) -> None:
    sequence = start
    while True:
        count = 1 + sequence % 3
        messages = [message(publisher, sequence + i) for i in range(count)]
        if ack_first:
            os.write(1, b"".join(b"%d %d -1\n" % (publisher, sequence + i) for i in range(count)))
        offsets = await broker.publish_many(messages, "orders")
        if not ack_first:
            lines = [
                b"%d %d %d\n" % (publisher, sequence + i, offset)
                for i, offset in enumerate(offsets)
            ]
            os.write(1, b"".join(lines))
        sequence += count


async def main() -> None:
    directory, publishers = sys.argv[1], int(sys.argv[2])
    ack_first = "--ack-first" in sys.argv
    start = int(os.environ.get("START", "0"))
    urls = [flag.partition("=")[2] for flag in sys.argv if flag.startswith("--history=")]
    settings: dict[str, Any] = {"segment_bytes": 256 * 1024, "upkeep_s": 0.05}
    if urls:
        settings |= {"history_url": urls[0], "history": True, "retention_bytes": 64 * 1024}
        settings["segment_bytes"] = 64 * 1024
    async with AsyncBroker(directory, **settings) as broker:
        await broker.create_topic("orders", exist_ok=True)
        os.write(1, b"ready\n")
        await asyncio.gather(
            *[publish(broker, one, start, ack_first=ack_first) for one in range(publishers)]
        )


if __name__ == "__main__":
    asyncio.run(main())
