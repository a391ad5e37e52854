"""Logs in which one sync, one truncation or one order of things is taken out.

Every place in the log that syncs or truncates is a line of one of the tables below; a new one that
is missing here fails a test. So "nothing acknowledged is lost" is shown to hang on each of them.

`python -m tests.sim.mutants [NAME ...]` prints "" for each one that the simulation notices, else
what is wrong. It has to run interpreted: places are known by their Python frames, and rules are
broken by patches.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from penstock.log.files import recovery
from penstock.log.files.active import ActiveSegment, create_segment
from penstock.log.files.commit import CommitJob
from penstock.log.files.disk import SyncError
from penstock.log.files.endfile import End
from penstock.log.files.recovery import Recovered
from penstock.log.format.end_bytes import FENCED
from tests.sim.world import SimulatedMachine

SEEDS_MAX = 3_000  # the rarest needs two faults in one history
SITES = "the tables"

# Each with the first seed that noticed it. That one is tried first: a search takes a minute.
NEEDED = {
    "sync in ActiveSegment.finish": 0,
    "sync in ActiveSegment.sync": 0,
    "sync in CommitJob._fail": 1097,
    "sync in CommitJob.write": 57,
    "sync in EmbeddedStore._write_end": 41,
    "sync in _settle": 12,
    "sync in create_segment": 0,
    "sync in finish_log": 19,
    "sync in write_sealed": 4,
    "sync in write_file": 0,
    "sync_dir in create_segment": 0,
    "sync_dir in recover": 758,
    "sync_dir in remove_segment": 64,
    "sync_dir in write_file": 10,
    "truncate in ActiveSegment.finish": 0,
    "truncate in _settle": 10,
    "write in _settle": 104,
}

# Left out, nothing that was promised is lost; each has another reason.
OTHER_REASONS = {
    "sync_dir in EmbeddedStore._delete_files": "a log whose creation failed; nobody was told of it",
    "sync_dir in adopt_sealed": "the old file may come back; it holds the same records",
    "sync_dir in open_end": "an `end` that is gone counts as the worst that it may have said",
    "truncate in ActiveSegment.cut_back": "gives space back; what is left does not chain",
    "truncate in ActiveSegment.write": "the same, before the batch is tried without zeros",
}


def seed_that_notices(known: int, left_out: str | None = None) -> int:
    for seed in (known, *range(SEEDS_MAX)):
        try:
            SimulatedMachine(seed, None, left_out).run_and_check()
        except Exception:
            return seed
    return -1


def sites_of(seeds: int) -> set[str]:
    """Every place that synced or truncated in so many histories."""
    sites: set[str] = set()
    for seed in range(seeds):
        world = SimulatedMachine(seed, None, "")
        world.run_and_check()
        assert world.disk.sites is not None
        sites |= world.disk.sites
    return {site for site in sites if not site.startswith("write ")}


def end_before_sync(patch: pytest.MonkeyPatch) -> None:
    right = CommitJob.sync

    def sync(job: CommitJob) -> None:
        if job.error is None:
            header, position = job.active.header, job.active.position + job.length
            end = End(header.epoch, job.batch.end_offset, header.base_offset, position)
            job.end_file.write(0, [end.pack()])
        right(job)

    patch.setattr(CommitJob, "sync", sync)


def ack_what_failed(patch: pytest.MonkeyPatch) -> None:
    right = CommitJob._fail

    def fail(job: CommitJob, failed: OSError) -> None:
        right(job, failed)
        if not isinstance(job.error, SyncError):
            job.error = None
            job.active.advance(job.length)

    patch.setattr(CommitJob, "_fail", fail)


def sync_again_after_failure(patch: pytest.MonkeyPatch) -> None:
    right = ActiveSegment.sync

    def sync(active: ActiveSegment) -> None:
        try:
            right(active)
        except SyncError:
            right(active)

    patch.setattr(ActiveSegment, "sync", sync)


def no_fence_on_disk(patch: pytest.MonkeyPatch) -> None:
    right = End.with_flags
    patch.setattr(End, "with_flags", lambda end, flags: right(end, flags & ~FENCED))


def always_clean(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(End, "is_clean", property(lambda end: True))


def never_loose(patch: pytest.MonkeyPatch) -> None:
    right = recovery.recover

    def recover(*arguments: object, may_have_lost: bool) -> Recovered:
        return right(*arguments, may_have_lost=False)  # type: ignore[arg-type]

    patch.setattr("penstock.log.files.store.recover", recover)
    patch.setattr(End, "is_loose", property(lambda end: False))


def marks_stay_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        recovery,
        "create_segment",
        lambda disk, directory, header, carried=(): create_segment(disk, directory, header),
    )


def cut_everything_off(patch: pytest.MonkeyPatch) -> None:
    right = recovery.scan_segment
    patch.setattr(
        recovery, "scan_segment", lambda file, header, limit: right(file, header, limit - 1)
    )


# Rules, with seeds like those above.
BROKEN = {
    end_before_sync: 56,
    ack_what_failed: 0,
    sync_again_after_failure: 19,
    no_fence_on_disk: 121,
    always_clean: 0,
    never_loose: 0,
    marks_stay_behind: 263,
    cut_everything_off: 0,
}


def check_sites(seeds: int = 150) -> None:
    unknown = sites_of(seeds) - {*NEEDED, *OTHER_REASONS}
    assert not unknown, f"the tables do not name {unknown}"


def check_site(name: str) -> None:
    check_seed(seed_that_notices(NEEDED[name], name), name)


def check_rule(break_it: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        break_it(patch)
        seed = seed_that_notices(BROKEN[break_it])
    check_seed(seed, break_it.__name__)


def check_seed(seed: int, name: str) -> None:
    assert seed >= 0, f"{SEEDS_MAX} histories went well without {name}"
    SimulatedMachine(seed).run_and_check()  # goes well when nothing is left out or broken


CHECKS: dict[str, Callable[[], None]] = {
    SITES: check_sites,
    **{name: partial(check_site, name) for name in NEEDED},
    **{one.__name__: partial(check_rule, one) for one in BROKEN},
}


def main(names: Sequence[str]) -> None:
    for name in names or CHECKS:
        try:
            CHECKS[name]()
            found = ""
        except Exception:
            found = traceback.format_exc()
        print(json.dumps({name: found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
