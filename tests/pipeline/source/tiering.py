"""A topic whose older records are in its history, which the test writes."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from penstock import Broker
from penstock.log.files.disk import RealDisk, write_file
from penstock.log.files.layout import find_logs, log_directory
from penstock.log.files.reader import FileReader
from penstock.log.files.segment import segment_bases, segment_path
from penstock.log.history.files import encode_file
from penstock.log.history.manifest import TableFacts, create_manifest, file_facts, open_manifest
from penstock.log.history.place import HistoryRoot, note_root
from penstock.log.history.storage import storage_of
from penstock.log.history.tier import LIFE_NAME, Known
from penstock.model.record import Record

SEGMENT_BYTES = "64 KiB"


def fill(data: Path, topic: str, count: int, seed: int = 1) -> None:
    """Records of all kinds, in segments of a few dozen each."""
    choose = random.Random(seed)
    with Broker(data, segment_bytes=SEGMENT_BYTES, upkeep_s=0.05) as broker:
        if topic not in [one.topic for one in broker.topics()]:
            broker.create_topic(topic, retention_age="unlimited")
        for number in range(count):
            value: Any = choose.choice([{"n": number}, f"text {number}", choose.randbytes(3)])
            if number % 7 == 0:
                value = choose.randbytes(4_000)
            headers = choose.choice([None, {"k": "ü"}, [("k", "1"), ("a", "2"), ("k", "3")]])
            name = f"{topic}/{choose.choice('abc')}/{number % 5}"
            broker.publish(value, topic, name=name, headers=headers)


def records(data: Path, topic: str) -> list[Record]:
    with Broker(data) as broker:
        return broker.read(topic)


def tier(data: Path, end: int, *, is_trimmed: bool = True) -> int:
    """Put what the only topic's history lacks below `end` into it, and drop whole segments from
    the log; the first offset that is left there."""
    disk = RealDisk()
    (identity,) = find_logs(disk, data)
    directory = log_directory(data, identity)
    root = HistoryRoot(str(data.parent / "history"))
    note_root(disk, data, root)
    storage = storage_of(root.place(identity))
    facts = TableFacts(identity.slug, identity.topic_id, "life")
    manifest = open_manifest(storage) or create_manifest(storage, facts)
    reader = FileReader(disk, directory)
    batches = reader.batches(manifest.end, end)
    manifest.add(encode_file(batches, manifest.end, end, file_facts(manifest, 1)), 1)
    write_file(disk, directory / LIFE_NAME, msgspec.json.encode(Known(facts.life, end)))
    if is_trimmed:
        bases = segment_bases(disk, directory)
        for base, following in pairwise(bases):
            if following <= end:
                segment_path(directory, base).unlink()
    return reader.bounds().first
