"""Clusters in which one rule of leases, fences or sessions is broken.

`python -m tests.sim.nodes.mutants [NAME ...]` prints "" for each one that the simulation notices,
else what is wrong. It has to run interpreted: rules are broken by patches.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.broker.cluster import recovery
from penstock.catalog.cluster import cluster
from penstock.catalog.cluster.recovering import FoundMarks
from penstock.catalog.session.sessions import SessionCatalog
from penstock.core.fences import Fences
from penstock.log.kafka.log import KafkaLog
from penstock.log.kafka.records.record_batch import RecordBatch, seal_bytes
from penstock.log.kafka.work import KafkaJob, KafkaWork
from tests.sim.nodes import sim_node
from tests.sim.nodes.sim_postgres import SimPostgres
from tests.sim.nodes.world import SimulatedCluster
from tests.sim.promises import Broken

SEEDS_MAX = 400


def late_marks_count(patch: pytest.MonkeyPatch) -> None:
    """What a dead node stores behind its fence is not void (invariant 3)."""
    patch.setattr(Fences, "is_void", lambda fences, incarnation, offset: False)


def ack_before_the_tail(patch: pytest.MonkeyPatch) -> None:
    """A batch is acknowledged although what lies before it was not read (invariant 1)."""

    def answered(log: Any) -> None:
        log.last_sync_s = 0.0
        log._end = max(log._end, log._job.base_offset)
        log._complete()

    patch.setattr(KafkaLog, "_answered", answered)


def transactions_of_the_dead(patch: pytest.MonkeyPatch) -> None:
    """A node that was declared dead may still change the catalog (invariant 2)."""
    right = SimPostgres.__init__

    def init(server: SimPostgres, *arguments: Any) -> None:
        right(server, *arguments)
        server.checks_rows = False

    patch.setattr(SimPostgres, "__init__", init)


def claim_from_anybody(patch: pytest.MonkeyPatch) -> None:
    """A session is claimed although another node has it (invariant 4)."""
    patch.setattr(SessionCatalog, "_claim", lambda *arguments: None)


def free_without_marks(patch: pytest.MonkeyPatch) -> None:
    """Sessions of a dead node are released without what it had stored for them (invariant 5)."""
    right = cluster.give_back

    def give_back(*arguments: Any, **named: Any) -> bool:
        return right(*arguments, **{**named, "found": FoundMarks()})

    patch.setattr(cluster, "give_back", give_back)


def look_only_behind_the_fence(patch: pytest.MonkeyPatch) -> None:
    """Who recovers a node looks for its marks from the fence on, not from its checkpoint."""
    right = recovery.fence_dead

    async def fence_dead(log: Any, level: int, incarnation: int, take: Any) -> int:
        return await right(log, log.bounds().end, incarnation, take)

    patch.setattr(recovery, "fence_dead", fence_dead)


def free_without_fence(patch: pytest.MonkeyPatch) -> None:
    """A dead node gets no fence: what it sent may be stored after its marks were looked for."""

    async def append_fence(log: Any, incarnation: int) -> int:
        return int(log.bounds().end)

    patch.setattr(KafkaLog, "append_fence", append_fence)


def send_again_as_new(patch: pytest.MonkeyPatch) -> None:
    """A batch that was not answered is sent with another number (invariant 7)."""
    right = KafkaWork._enqueue

    def enqueue(work: Any, job: KafkaJob, done: Any) -> None:
        if job.sent_count:
            batch = RecordBatch(job.data, 0, len(job.data))
            work.producer = (work.producer[0] + 1_000, 0)
            work._sequences.clear()
            times = batch.base_ms, batch.max_ms
            job.data = seal_bytes(batch.stored, batch.count, times, work.producer, 0)
        right(work, job, done)

    patch.setattr(KafkaWork, "_enqueue", enqueue)


def open_without_fences(patch: pytest.MonkeyPatch) -> None:
    """A node that starts does not know the fences that lie before the end of its logs."""

    async def learn(*arguments: Any) -> None:
        return

    patch.setattr(sim_node, "learn_earlier_fences", learn)


# Each with a seed that noticed it, which is tried first.
BROKEN: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    late_marks_count: 8,
    ack_before_the_tail: 0,
    transactions_of_the_dead: 8,
    claim_from_anybody: 2,
    free_without_marks: 3,
    look_only_behind_the_fence: 3,
    free_without_fence: 2,
    send_again_as_new: 4,
    open_without_fences: 8,
}


def check_rule(break_it: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        break_it(patch)
        seed, noticed = _seed_that_notices(BROKEN[break_it])
    print(f"{break_it.__name__}: seed {seed}: {noticed}", file=sys.stderr)
    SimulatedCluster(seed).run_and_check()  # goes well when nothing is broken


def _seed_that_notices(known: int) -> tuple[int, str]:
    """Which, and the promise that was broken; another error would prove nothing."""
    for seed in (known, *range(SEEDS_MAX)):
        try:
            SimulatedCluster(seed).run_and_check()
        except Broken as noticed:
            return seed, str(noticed)
    raise AssertionError(f"{SEEDS_MAX} histories went well")


def main(names: Sequence[str]) -> None:
    for break_it in BROKEN:
        if names and break_it.__name__ not in names:
            continue
        try:
            check_rule(break_it)
            found = ""
        except Exception:
            found = traceback.format_exc()
        print(json.dumps({break_it.__name__: found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
