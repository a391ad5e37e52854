"""`penstock bench`: how fast a broker stores and reads, in a topic that is deleted at the end.

A message counts once it is acknowledged, so at level `fsync` the disk is measured, too.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

from penstock.cli.arguments import whole_number
from penstock.cli.output import human_bytes, show_json, waiting
from penstock.cli.remote import AnyBroker, add_remote, reach_broker
from penstock.model.limits import MIB

BYTES_MAX: Final = MIB  # of a message
BATCH_MAX: Final = 10_000
SECONDS_MAX: Final = 600.0
BATCH_BYTES_MAX: Final = 16 * MIB  # of one call
STORED_BYTES_MAX: Final = 256 * MIB  # then a measurement ends before its time
READ_RECORDS: Final = 10_000  # of one call


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("bench")
    parser.add_argument("--bytes", type=_size, default=100, help="size of a message (100)")
    parser.add_argument("--batch", type=_batch, default=100, help="messages stored at once (100)")
    parser.add_argument(
        "--seconds", type=_seconds, default=2.0, help="duration of each measurement (2)"
    )
    parser.add_argument(
        "--durability",
        choices=["fsync", "os"],
        default="fsync",
        help="what an acknowledgement means: on disk, or handed to the operating system",
    )
    add_remote(parser)
    parser.set_defaults(run=bench)


def _size(text: str) -> int:
    return _up_to(whole_number(text), BYTES_MAX)


def _batch(text: str) -> int:
    return _up_to(whole_number(text), BATCH_MAX)


def _up_to(count: int, most: int) -> int:
    if count > most:
        raise argparse.ArgumentTypeError(f"{count} is too large: at most {most} is allowed")
    return count


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid duration: give seconds above 0, at most {SECONDS_MAX:g}"
        )
    return seconds


def bench(options: argparse.Namespace) -> None:
    topic = f"bench-{uuid4().hex[:12]}"
    with reach_broker(options, create=True) as broker:
        broker.create_topic(topic, durability=options.durability)
        try:
            with waiting("measuring"):
                found = measure(broker, topic, options.bytes, options.batch, options.seconds)
        finally:
            broker.delete_topic(topic)
    said = {"bytes": options.bytes, "batch": options.batch, "durability": options.durability}
    if options.json:
        show_json(said | found)
        return
    print(f"messages of {human_bytes(options.bytes)}, acknowledged at level {options.durability}")
    median, worst = found["single_ms_median"], found["single_ms_99"]
    batches = f"stored {options.batch} at once"
    for label, rate, more in (
        ("stored one by one", found["single_per_s"], f"{median} ms, 99 % within {worst} ms"),
        (batches, found["batch_per_s"], ""),
        ("read", found["read_per_s"], ""),
    ):
        print(f"{label:<24}{rate:>12,} messages/s  {more}".rstrip())


def measure(broker: AnyBroker, topic: str, size: int, batch: int, seconds: float) -> dict[str, Any]:
    """Rates, and how long a single message takes."""
    message = b"x" * size
    batch_now = max(1, min(batch, BATCH_BYTES_MAX // size))
    broker.publish(message, topic)  # what the first one costs is paid
    singles_s = _time_calls(lambda: broker.publish(message, topic), seconds, size)
    batches_s = _time_calls(
        lambda: broker.publish_many([message] * batch_now, topic), seconds, size * batch_now
    )
    end, at, started_s = broker.size(topic), 0, time.perf_counter()
    while at < end and time.perf_counter() - started_s < seconds:
        at += len(broker.read(topic, start=at, limit=READ_RECORDS))
    read_s = time.perf_counter() - started_s
    singles_s.sort()
    return {
        "single_per_s": round(len(singles_s) / sum(singles_s)),
        "single_ms_median": round(1000 * singles_s[len(singles_s) // 2], 3),
        "single_ms_99": round(1000 * singles_s[len(singles_s) * 99 // 100], 3),
        "batch_per_s": round(batch_now * len(batches_s) / sum(batches_s)),
        "read_per_s": round(at / read_s),
    }


def _time_calls(call: Callable[[], object], seconds: float, size: int) -> list[float]:
    """How long each call took, until the time is up or much was stored; at least one."""
    taken_s: list[float] = []
    end_s = time.perf_counter() + seconds
    while not taken_s or (time.perf_counter() < end_s and len(taken_s) * size < STORED_BYTES_MAX):
        started_s = time.perf_counter()
        call()
        taken_s.append(time.perf_counter() - started_s)
    return taken_s
