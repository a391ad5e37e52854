"""What publisher.py was promised, and whether a directory keeps it.

`Promises` follows the told lines and knows, at any of them, what must be there and what may be. A
step that has begun and is not done may have happened or not; everything else is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import Broker
from penstock.app.aio import AsyncBroker
from penstock.broker.queue.consumers import read_matching
from penstock.core.naming.names import topic_key, topic_slug
from penstock.log.files.disk import RealDisk
from penstock.log.files.layout import find_logs, log_directory, read_facts
from penstock.log.files.segment import (
    HEADER_BYTES,
    segment_bases,
    segment_path,
    unpack_segment_header,
)
from penstock.log.files.upkeep.verify import verify_log

from .publisher import SEGMENT_BYTES, message

DISK = RealDisk()


@dataclass(slots=True)
class Reader:
    """A consumer: where it may stand after a crash, and where it stands now."""

    saved: set[int]
    next_offset: int
    confirms_itself: bool = False
    is_certain: bool = True  # False while subscribing or unsubscribing


@dataclass(slots=True)
class Promised:
    """What a topic must hold."""

    declared: str
    directory: str = ""
    is_certain: bool = False  # False while it is being created or deleted
    level: str = "fsync"
    was_loose: bool = False  # at any time at level `os`
    epoch: int = 1
    synced_end: int = 0  # holds after a power loss at every level
    acked_end: int = 0  # holds after kill -9 at every level
    begun_end: int = 0  # nothing may be past it
    first_min: int = 0
    first_max: int = 0
    retention: set[int | None] = field(default_factory=lambda: {None})
    readers: dict[str, Reader] = field(default_factory=dict)


class Promises:
    """The state after some told lines."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self.topics: dict[str, Promised] = {}
        self.gone: set[str] = set()  # directories of deleted topics
        self.bindings: dict[tuple[str, str], bool] = {}  # (filter, topic's key) → is certain
        self.is_closed = True
        for line in lines:
            self.hear(line)

    def hear(self, line: str) -> None:
        when, step, *rest = json.loads(line)
        if when != "sync":
            getattr(self, f"_{when}_{step}")(*rest)

    def _begin_open(self) -> None:
        self.is_closed = False

    def _done_open(self, found: dict[str, Any]) -> None:
        for name in self.topics.keys() - found.keys():
            self._done_delete(name)  # its creation or deletion was under way, and is decided now
        for name, (end, epoch, positions) in found.items():
            topic = self.topics[name]
            topic.synced_end = topic.acked_end = topic.begun_end = end
            topic.epoch = epoch
            for consumer, position in positions.items():
                saved = topic.readers[consumer].saved if topic.was_loose else set()
                topic.readers[consumer] = Reader(saved | {position}, position)

    def _begin_close(self) -> None:
        for topic in self.topics.values():
            for reader in topic.readers.values():
                if reader.confirms_itself:
                    reader.saved.add(reader.next_offset)

    def _done_close(self) -> None:
        self.is_closed = True
        for topic in self.topics.values():
            topic.synced_end = topic.acked_end
            for reader in topic.readers.values():
                if reader.confirms_itself:
                    reader.saved = {reader.next_offset}

    def _begin_create(self, name: str, settings: dict[str, Any]) -> None:
        level = settings.get("durability", "fsync")
        self.topics[name] = Promised(name, level=level, was_loose=level == "os")
        self.topics[name].retention = {settings.get("retention_bytes")}

    def _done_create(self, name: str, topic_id: int) -> None:
        self.topics[name].is_certain = True
        self.topics[name].directory = f"{topic_slug(name)}-{topic_id}"

    def _begin_alter(self, name: str, settings: dict[str, Any]) -> None:
        topic = self.topics[name]
        if "retention_bytes" in settings:
            topic.retention.add(settings["retention_bytes"])
        topic.was_loose |= settings.get("durability") == "os"

    def _done_alter(self, name: str, settings: dict[str, Any]) -> None:
        topic = self.topics[name]
        if "retention_bytes" in settings:
            topic.retention = {settings["retention_bytes"]}
        if "durability" in settings:
            topic.level = settings["durability"]  # holds for what comes: stored is as it was stored

    def _begin_delete(self, name: str) -> None:
        self.topics[name].is_certain = False

    def _done_delete(self, name: str) -> None:
        self.gone.add(self.topics.pop(name).directory)

    def _begin_publish(self, name: str, end: int) -> None:
        self.topics[name].begun_end = end

    def _done_publish(self, name: str, end: int) -> None:
        topic = self.topics[name]
        topic.acked_end = end
        if topic.level == "fsync":
            topic.synced_end = end

    def _begin_subscribe(self, consumer: str, name: str) -> None:
        topic = self.topics[name]
        anywhere = set(range(topic.begun_end + 1))
        topic.readers[consumer] = Reader(anywhere, 0, is_certain=False)

    def _done_subscribe(self, consumer: str, name: str, offset: int) -> None:
        self.topics[name].readers[consumer] = Reader({offset}, offset)

    def _begin_unsubscribe(self, consumer: str, name: str) -> None:
        self.topics[name].readers[consumer].is_certain = False

    def _done_unsubscribe(self, consumer: str, name: str) -> None:
        del self.topics[name].readers[consumer]

    def _begin_consume(self, consumer: str, name: str, commit: bool) -> None:
        reader = self.topics[name].readers[consumer]
        if commit:
            reader.saved.add(reader.next_offset)
        reader.confirms_itself = commit

    def _done_consume(self, consumer: str, name: str, offset: int) -> None:
        self.topics[name].readers[consumer].next_offset = offset

    def _begin_commit(self, consumer: str, name: str, offset: int) -> None:
        self.topics[name].readers[consumer].saved.add(offset)

    def _done_commit(self, consumer: str, name: str, offset: int) -> None:
        self.topics[name].readers[consumer].saved = {offset}

    _begin_seek = _begin_commit

    def _done_seek(self, consumer: str, name: str, offset: int) -> None:
        self.topics[name].readers[consumer] = Reader({offset}, offset)

    def _begin_bind(self, filter: str, name: str) -> None:
        self.bindings[filter, topic_key(name)] = False

    def _done_bind(self, filter: str, name: str) -> None:
        self.bindings[filter, topic_key(name)] = True

    def _begin_unbind(self, filter: str) -> None:
        for key in self.bindings:
            if key[0] == filter:
                self.bindings[key] = False

    def _done_unbind(self, filter: str) -> None:
        self.bindings = {key: sure for key, sure in self.bindings.items() if key[0] != filter}

    def _begin_look_after(self) -> None:
        for topic in self.topics.values():
            if topic.retention != {None}:
                topic.first_max = topic.synced_end

    def _done_look_after(self, firsts: dict[str, int]) -> None:
        for name, first in firsts.items():
            self.topics[name].first_min = self.topics[name].first_max = first


@dataclass(frozen=True, slots=True)
class Found:
    """What an opened directory shows of a topic."""

    directory: Path
    first: int
    end: int
    epoch: int
    level: str
    retention_bytes: int | None
    payloads: list[bytes]
    positions: dict[str, int]


async def _look(broker: AsyncBroker, root: Path) -> dict[str, Found]:
    engine = broker.engine
    found = {}
    for topic in engine.topics.all():
        first, end = topic.log.bounds()
        records, _ = await read_matching(topic, first, end, None, None)
        settings = topic.log.settings
        found[topic.declared] = Found(
            log_directory(root, topic.identity),
            first,
            end,
            topic.log.epoch,
            settings.durability,
            settings.retention_bytes,
            [record.payload for record in records],
            {one.name: one.next_offset for one in engine.consumers.of(topic)},
        )
    return found


def open_broker(directory: Path) -> Broker:
    return Broker(directory, segment_bytes=SEGMENT_BYTES, upkeep_s=3_600, disk_free_percent_min=0)


def broken_promises(
    directory: Path, promises: Promises, *, keeps_unsynced: bool, opens_again: bool = True
) -> list[str]:
    """Open the directory as a broker does after a crash: what is not as promised?"""
    problems = _closed_problems(directory) if promises.is_closed else []
    try:
        with open_broker(directory) as broker:
            found = broker._call(_look(broker._broker, directory))
            problems += _catalog_problems(broker, directory, promises, found)
            for name, one in found.items():
                if name in promises.topics:
                    problems += _topic_problems(
                        promises, promises.topics[name], one, keeps_unsynced
                    )
                assert broker.publish(message(name, one.end), name) == one.end
        for one in found.values():
            problems += [str(finding) for finding in verify_log(DISK, one.directory).problems]
            problems += _sealing_problems(one.directory)
            problems += _leftover_problems(one.directory, promises)
        if opens_again:
            with open_broker(directory) as broker:
                again = broker._call(_look(broker._broker, directory))
            problems += _second_problems(found, again)
    except Exception as error:  # whatever it is, the directory did not open and work
        problems.append(f"{type(error).__name__}: {error}")
    return problems


def _catalog_problems(
    broker: Broker, directory: Path, promises: Promises, found: dict[str, Found]
) -> list[str]:
    problems = []
    for name, topic in promises.topics.items():
        if topic.is_certain and name not in found:
            problems.append(f"topic {name} is gone")
    for name in found.keys() - promises.topics.keys():
        problems.append(f"topic {name} came back")
    bound = {(b.filter, b.topic) for b in broker._broker.engine.topics.placement.bindings}
    for binding, is_certain in promises.bindings.items():
        if is_certain and binding not in bound:
            problems.append(f"binding {binding} is gone")
    for binding in bound - promises.bindings.keys():
        problems.append(f"binding {binding} came back")
    for name in promises.gone.intersection(DISK.list(directory / "default")):
        problems.append(f"directory {name} of a deleted topic is still there")
    return problems


def _topic_problems(
    promises: Promises, topic: Promised, found: Found, keeps_unsynced: bool
) -> list[str]:
    name = topic.declared
    problems = []
    end_min = topic.acked_end if keeps_unsynced else topic.synced_end
    if not end_min <= found.end <= topic.begun_end:
        problems.append(f"{name} ends at {found.end}, not in [{end_min}, {topic.begun_end}]")
    if not topic.first_min <= found.first <= topic.first_max:
        problems.append(
            f"{name} begins at {found.first}, not in [{topic.first_min}, {topic.first_max}]"
        )
    if len(found.payloads) != found.end - found.first:
        problems.append(f"{name} gives {len(found.payloads)} records of {found.end - found.first}")
    for offset, payload in enumerate(found.payloads, found.first):
        if payload != message(name, offset):
            problems.append(f"{name} at {offset} holds {payload[:30]!r}")
    if topic.is_certain and found.retention_bytes not in topic.retention:
        problems.append(f"{name} has retention_bytes {found.retention_bytes}")
    facts = read_facts(DISK, found.directory)
    if facts.topic != name or facts.settings.retention_bytes not in topic.retention:
        problems.append(f"topic.json of {name} says {facts}")
    return problems + _epoch_problems(promises, topic, found) + _reader_problems(topic, found)


def _epoch_problems(promises: Promises, topic: Promised, found: Found) -> list[str]:
    if found.end < topic.acked_end and found.epoch <= topic.epoch:
        return [f"{topic.declared} lost visible records and is still in epoch {found.epoch}"]
    is_exact = not topic.was_loose or promises.is_closed
    if found.epoch < topic.epoch or (is_exact and found.epoch != topic.epoch):
        return [f"{topic.declared} is in epoch {found.epoch}, expected {topic.epoch}"]
    return []


def _reader_problems(topic: Promised, found: Found) -> list[str]:
    problems = []
    for name, reader in topic.readers.items():
        if name not in found.positions:
            if reader.is_certain:
                problems.append(f"consumer {name} of {topic.declared} is gone")
            continue
        at = found.positions[name]
        clamped = {min(saved, found.end) for saved in reader.saved}
        if at not in clamped:
            problems.append(f"consumer {name} of {topic.declared} is at {at}, not in {clamped}")
    for name in found.positions.keys() - topic.readers.keys():
        problems.append(f"consumer {name} of {topic.declared} came back")
    return problems


def _closed_problems(directory: Path) -> list[str]:
    """After a clean close readers of files see everything, before any broker opens it again."""
    problems = []
    for identity in find_logs(DISK, directory):
        report = verify_log(DISK, log_directory(directory, identity))
        problems += [str(finding) for finding in report.problems]
        if report.durable_end != report.end_offset:
            problems.append(f"{report.directory}: `end` says {report.durable_end} after a close")
    return problems


def _sealing_problems(directory: Path) -> list[str]:
    """Segments are sealed oldest first: sealing goes on where the first unsealed one is."""
    sealed = []
    for base in segment_bases(DISK, directory):
        file = DISK.open(segment_path(directory, base), write=False)
        header = unpack_segment_header(file.read(0, HEADER_BYTES))
        file.close()
        sealed.append(header is not None and header.is_sealed)
    if sealed != sorted(sealed, reverse=True):
        return [f"{directory.name}: an unsealed segment before a sealed one"]
    return []


def _leftover_problems(directory: Path, promises: Promises) -> list[str]:
    """A power loss damages nothing; bytes are put aside only where visible records were lost."""
    is_loose = any(topic.was_loose for topic in promises.topics.values())
    return [
        f"{directory.name} holds {name}"
        for name in DISK.list(directory)
        if name.endswith((".damaged", ".log.tmp"))
        or ".log.sealing" in name
        or (".cut-at-" in name and not is_loose)
    ]


def _second_problems(found: dict[str, Found], again: dict[str, Found]) -> list[str]:
    problems = []
    for name, one in found.items():
        two = again.get(name)
        if two is None:
            problems.append(f"topic {name} is gone when opened again")
        elif (two.first, two.end, two.epoch) != (one.first, one.end + 1, one.epoch):
            problems.append(f"{name} changed when opened again: {one.end + 1} → {two.end}")
        elif two.payloads != [*one.payloads, message(name, one.end)]:
            problems.append(f"{name} has other records when opened again")
        elif two.positions != one.positions:
            problems.append(f"consumers of {name} moved when opened again")
    return problems
