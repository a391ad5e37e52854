"""Power loss under MQTT: is everything that clients were told true afterwards, at any point?"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.app.wiring import open_directory
from penstock.broker.session.session import NEVER_EXPIRES, Session
from penstock.broker.session.store import SessionStore
from penstock.broker.settings import BrokerSettings
from penstock.core.naming.placement import DEFAULT_TOPIC
from penstock.log.files.disk import RealDisk
from penstock.log.files.upkeep.verify import verify_log
from penstock.model.errors import TopicNotFound
from tests.broker.exchange_world import Client
from tests.doors.served import Served
from tests.powerloss import (
    DROP_ALL,
    Crash,
    Recording,
    Trace,
    all_policies,
    crashes,
    ignoring,
    sampled_points,
)

POINTS = int(os.environ.get("PENSTOCK_POWERLOSS_POINTS", "150"))
SEED = int(os.environ.get("PENSTOCK_SEED", "1"))
CHILD = Path(__file__).with_name("mqtt_child.py")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A broker and a client, in one order of events."""
    folder = tmp_path_factory.mktemp("mqtt")
    recording = Recording(folder / "root", folder / "trace")
    with Served(folder / "root" / "data", env=recording.env(ack_fd=None)) as broker:
        ended = subprocess.run(
            [sys.executable, str(CHILD), str(broker.port)],
            env=recording.env(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
    return recording.trace()


@pytest.fixture(scope="module")
def workdir() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


class Told:
    """What the client was promised, from its words up to the crash."""

    def __init__(self, lines: list[str]) -> None:
        self.sessions: set[str] = set()
        self.subscribed: set[tuple[str, str]] = set()
        self.stored: Counter[str] = Counter()
        self.retained: dict[str, int] = {}
        self.taken: set[str] = set()  # by reader-0, released by the broker: never to come again
        self.open: dict[int, bool] = {}  # packet id -> certainly open, or perhaps released
        for line in lines:
            what, *rest = json.loads(line)
            if what == "session":
                self.sessions.add(rest[0])
            elif what == "subscribed":
                self.subscribed.add((rest[0], rest[1]))
            elif what == "stored":
                self.stored[rest[0]] += 1
            elif what == "retained":
                self.retained[rest[0]] = rest[1]
            elif what == "taken":
                self.taken.add(rest[0])
            elif what == "received":
                self.stored[rest[0]] += 1
                self.open[rest[1]] = True
            elif what == "releasing":
                self.open[rest[0]] = False
            elif what == "released":
                del self.open[rest[0]]


async def look(data: Path, told: Told) -> list[str]:
    """Open the directory as the next broker would, and compare."""
    problems: list[str] = []
    opened = await open_directory(data, BrokerSettings())
    engine = opened.engine
    store = SessionStore(engine, engine.session_catalog)
    try:
        await store.open()
        try:
            log = engine.topics.get(DEFAULT_TOPIC).log
        except TopicNotFound:
            return ["the topic is gone"] if told.stored else []
        payloads: Counter[str] = Counter()
        offsets: dict[str, int] = {}
        async for batch in log.batches_since(0):
            for record in batch.records("", 0, 1 << 40):
                payloads[record.payload.decode()] += 1
                offsets[record.payload.decode()] = record.offset
        problems += [f"lost {one}" for one in told.stored if payloads[one] < told.stored[one]]
        twice = [one for one in payloads if one.startswith("two") and payloads[one] > 1]
        problems += [f"stored twice: {one}" for one in twice]
        for name, number in told.retained.items():
            head = store.retained.get(name)
            row = None if head is None else await store.retained.fetch(head, [])
            if row is None or row.payload.decode() not in candidates(name, number, payloads):
                problems.append(f"{name} holds {row and row.payload!r}, told {number}")
        problems += await look_at_sessions(store, told, offsets)
    finally:
        await store.close()
        await opened.close(True)
    return problems


def candidates(name: str, number: int, payloads: Counter[str]) -> set[str]:
    """The newest that was acknowledged; a later one may have been stored without a word."""
    own = [n for n in range(24) if n % 2 and f"r/{n % 3}" == name]
    later = {f"one {n}" for n in own if n > number and payloads[f"one {n}"]}
    again = {f"one {n}" for n in own if payloads[f"one {n}"] > 1}  # of the second round
    return {f"one {number}"} | later | again


async def look_at_sessions(store: SessionStore, told: Told, offsets: dict[str, int]) -> list[str]:
    problems = []
    filters: dict[str, set[str]] = {}
    for client_id in sorted(told.sessions | ({"writer"} if told.open else set())):
        session = Session(client_id, Client(client_id), 10)
        session.expiry_s = NEVER_EXPIRES
        stored, is_present = await store.begin(session, is_clean=False)
        if not is_present:
            problems.append(f"the session of {client_id} is gone")
        filters[client_id] = {row.filter for row in stored.subscriptions}
        if client_id == "reader-0":
            ((_, position),) = stored.positions.values() or [(0, 0)]
            is_out = {row.offset: not row.is_released for row in stored.outstanding}
            for payload in told.taken:
                if is_out.get(offsets[payload], offsets[payload] >= position):
                    problems.append(f"{payload} would be sent again")
        if client_id == "writer":
            lost = [one for one, is_sure in told.open.items() if is_sure]
            lost = [one for one in lost if one not in session.opened]
            problems += [f"packet id {one} is not known to be open" for one in lost]
    for client_id, filter in told.subscribed:
        if filter not in filters.get(client_id, set()):
            problems.append(f"{client_id} lost its subscription to {filter}")
    return problems


def problems_of(crash: Crash) -> str:
    data = crash.directory / "data"
    told = Told(crash.acked_lines())
    if not data.is_dir():
        return f"{crash}: nothing is left" if told.sessions else ""
    problems = asyncio.run(look(data, told))
    if told.sessions:  # before that the topic may have been half created
        for folder in (data / "default").glob("*-*"):
            problems += map(str, verify_log(RealDisk(), folder).problems)
    return f"{crash}: {'; '.join(problems[:5])}" if problems else ""


def test_what_mqtt_clients_were_told_is_true_wherever_the_power_fails(
    trace: Trace, workdir: Path
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    points = {*sampled_points(trace, POINTS, SEED), *trace.worst_points()[::6]}
    checked = 0
    for crash in crashes(trace, points, all_policies(range(SEED, SEED + 2)), workdir):
        assert problems_of(crash) == ""
        checked += 1
    assert checked > POINTS // 2


def test_each_kind_of_sync_is_missed_by_somebody(trace: Trace, workdir: Path) -> None:
    """Without the syncs of the log, or of the catalog: is something told then untrue?"""
    for part in (".log", "catalog.db"):
        sites = [site for site in trace.sync_sites() if part in str(site)]
        assert sites, f"{part} was never synced"
        lost = [
            problem
            for site in sites
            for crash in crashes(
                trace, trace.worst_points()[::8], [DROP_ALL], workdir, ignoring(site)
            )
            if (problem := safely(crash))
        ]
        assert lost, f"nobody misses the syncs of {part}"


def safely(crash: Crash) -> str:
    """Also a directory that cannot be opened any more counts as lost."""
    try:
        return problems_of(crash)
    except Exception as broken:
        return f"{crash}: {broken!r}"
