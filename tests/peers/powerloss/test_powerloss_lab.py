"""Does the power-loss laboratory lose what a disk may lose, and keep what it must keep?"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.powerloss import (
    DROP_ALL,
    KEEP_ALL,
    Disk,
    RandomLoss,
    SyncBegin,
    Trace,
    ignoring,
)
from tests.powerloss.image import PAGE_BYTES, SECTOR_BYTES
from tests.powerloss.toys import Record, left, run_toy
from tests.powerloss.trace import Create, Existing, SyncEnd, Truncate, Write, pattern_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def record(root: Path) -> Record:
    return functools.partial(run_toy, root)


def left_at_random(trace: Trace, seeds: int, path: str) -> set[bytes | None]:
    disk = Disk(trace)
    trees = (disk.remains(len(trace), RandomLoss(seed)) for seed in range(seeds))
    return {tree.read(path) if path in tree.files else None for tree in trees}


# ---- what must be lost, and what must not


def test_unsynced_write_is_lost_and_its_synced_entry_stays(record: Record) -> None:
    trace = record("put('a', b'x' * 5000); sync()")
    assert left(trace) == {"a": b""}


def test_synced_file_without_a_directory_sync_is_gone(record: Record) -> None:
    trace = record("put('a', b'kept'); sync('a')")
    assert left(trace) == {}


def test_file_synced_with_its_directory_stays(record: Record) -> None:
    trace = record("put('a', b'kept'); sync('a'); sync(); put('a', b'lost')")
    assert left(trace) == {"a": b"kept"}


def test_fdatasync_keeps_data_and_size(record: Record) -> None:
    trace = record("""
        put('a', b'x' * 5000)
        fd = os.open('a', os.O_RDWR)
        os.fdatasync(fd)
        sync()
    """)
    assert left(trace) == {"a": b"x" * 5000}


def test_every_directory_above_a_file_must_be_synced(record: Record) -> None:
    trace = record("os.makedirs('d/e'); put('d/e/a', b'1'); sync('d/e/a'); sync('d/e'); sync()")
    assert left(trace) == {}
    assert Disk(trace).remains(len(trace), DROP_ALL).directories == ("d",)


def test_rename_without_a_directory_sync_is_undone(record: Record) -> None:
    trace = record("""
        put('a', b'old'); put('b', b'new'); sync('a'); sync('b'); sync()
        os.rename('b', 'a')
    """)
    assert left(trace) == {"a": b"old", "b": b"new"}


def test_rename_followed_by_a_directory_sync_stays(record: Record) -> None:
    trace = record("""
        put('a', b'old'); put('b', b'new'); sync('a'); sync('b'); sync()
        os.rename('b', 'a'); sync()
    """)
    assert left(trace) == {"a": b"new"}


def test_rename_of_a_directory_carries_what_is_in_it(record: Record) -> None:
    trace = record("""
        os.mkdir('d'); put('d/a', b'1'); sync('d/a'); sync('d'); sync()
        os.rename('d', 'gone'); sync()
        put('gone/a', b'2'); sync('gone/a')
    """)
    assert left(trace) == {"gone/a": b"2"}


@pytest.mark.parametrize("order", [("d", "e"), ("e", "d")])
def test_rename_between_directories_needs_both_synced_and_never_loses_the_file(
    record: Record, order: tuple[str, str]
) -> None:
    trace = record(f"""
        os.mkdir('d'); os.mkdir('e'); put('d/a', b'1'); sync('d/a'); sync('d'); sync()
        os.rename('d/a', 'e/a'); sync('{order[0]}'); sync('{order[1]}')
    """)
    moved, synced_once = len(trace) - 4, len(trace) - 2
    assert left(trace, moved) == left(trace, synced_once) == {"d/a": b"1"}
    assert left(trace) == {"e/a": b"1"}
    disk = Disk(trace)
    for at in range(moved - 1, len(trace) + 1):
        for seed in range(20):
            assert len(disk.remains(at, RandomLoss(seed)).files) == 1


def test_removed_directory_takes_nothing_with_it_that_was_moved_out_first(record: Record) -> None:
    trace = record("""
        os.mkdir('d'); put('d/a', b'1'); sync('d/a'); sync('d'); sync()
        os.rename('d/a', 'a'); os.rmdir('d'); sync()
    """)
    assert left(trace) == {"a": b"1"}
    assert left_at_random(trace, 20, "a") == {b"1"}


def test_old_name_used_again_and_synced_brings_the_rename_with_it(record: Record) -> None:
    trace = record("""
        os.mkdir('d'); os.mkdir('e'); put('d/a', b'1'); sync('d/a'); sync('d'); sync()
        os.rename('d/a', 'e/a'); put('d/a', b'2'); sync('d/a'); sync('d')
    """)
    assert left(trace) == {"e/a": b"1", "d/a": b"2"}


def test_rename_between_two_names_of_one_file_does_nothing(record: Record) -> None:
    trace = record("put('a', b'1'); sync('a'); os.link('a', 'b'); os.rename('a', 'b'); sync()")
    assert left(trace) == {"a": b"1", "b": b"1"}


def test_removal_without_a_directory_sync_is_undone(record: Record) -> None:
    trace = record("put('a', b'1'); sync('a'); sync(); os.unlink('a')")
    assert left(trace) == {"a": b"1"}
    assert left(record("sync()")) == {}


def test_file_made_anew_under_an_old_inode_is_another_file(record: Record) -> None:
    trace = record("""
        put('a', b'old'); sync('a'); sync()
        os.unlink('a')
        put('a', b'new'); sync('a')
    """)
    assert left(trace) == {"a": b"old"}
    assert left_at_random(trace, 40, "a") == {b"old", b"new", None}


def test_hard_link_shares_one_content(record: Record, tmp_path: Path) -> None:
    trace = record("put('a', b'1'); sync('a'); os.link('a', 'b'); sync(); put('b', b'2')")
    Disk(trace).remains(len(trace), KEEP_ALL).save(tmp_path / "out")
    assert (tmp_path / "out/a").read_bytes() == b"2"
    assert (tmp_path / "out/a").samefile(tmp_path / "out/b")


def test_truncation_without_a_sync_is_undone(record: Record) -> None:
    trace = record("put('a', b'x' * 9000); sync('a'); sync(); os.truncate('a', 10)")
    assert left(trace) == {"a": b"x" * 9000}


def test_opening_with_truncation_is_a_truncation(record: Record) -> None:
    trace = record("put('a', b'x' * 9000); sync('a'); sync(); open('a', 'w').close()")
    assert left(trace) == {"a": b"x" * 9000}
    assert left_at_random(trace, 20, "a") == {b"x" * 9000, b""}


def test_truncated_pages_come_back_whole_or_not_at_all(record: Record) -> None:
    trace = record("""
        put('a', b'o' * 16384); sync('a'); sync()
        os.truncate('a', 4096)
        put('a', b'n' * 12288, at=4096)
    """)
    old, new, zero = (letter * PAGE_BYTES for letter in (b"o", b"n", b"\0"))
    found = left_at_random(trace, 200, "a")
    assert old * 4 in found
    assert old in found
    for content in found - {old * 4, None}:
        assert content is not None
        pages = [content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)]
        assert pages[0] == old
        assert old not in pages[1:]
    assert old + new + zero + new in found


def test_overwrite_in_place_survives_as_any_subset_of_pages(record: Record) -> None:
    trace = record("put('a', b'o' * 16384); sync('a'); sync(); put('a', b'n' * 16384)")
    found = left_at_random(trace, 400, "a")
    shapes = set()
    for content in found:
        assert content is not None
        pages = [content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)]
        shapes.add("".join(chr(page[0]) if len(set(page)) == 1 else "t" for page in pages))
    whole = {shape for shape in shapes if "t" not in shape}
    assert len(whole) == 16, "every subset of four pages"
    assert shapes - whole, "torn pages too"


def test_torn_page_is_torn_at_sectors(record: Record) -> None:
    trace = record("put('a', b'o' * 4096); sync('a'); sync(); put('a', b'n' * 4096)")
    torn = left_at_random(trace, 100, "a") - {b"o" * 4096, b"n" * 4096}
    assert torn
    for content in torn:
        assert content is not None
        sectors = (content[at : at + SECTOR_BYTES] for at in range(0, PAGE_BYTES, SECTOR_BYTES))
        assert {len(set(sector)) for sector in sectors} == {1}


def test_size_and_data_of_an_append_survive_separately(record: Record) -> None:
    trace = record("put('a', b'x'); sync('a'); sync(); put('a', b'y' * 10, at=1)")
    assert left_at_random(trace, 60, "a") == {b"x", b"x" + b"y" * 10, b"x" + b"\0" * 10}


def test_kill_minus_nine_loses_nothing(record: Record) -> None:
    trace = record("put('a', b'1'); os.kill(os.getpid(), 9)", exit_codes=(-9,))
    assert Disk(trace).remains(len(trace), KEEP_ALL).read("a") == b"1"


def test_same_seed_leaves_the_same_tree_whatever_was_asked_before(record: Record) -> None:
    trace = record("[put(f'a{n}', bytes([n]) * 9000) for n in range(8)]; sync()")
    fresh, used = Disk(trace), Disk(trace)
    used.remains(len(trace), RandomLoss(1))
    used.remains(3, RandomLoss(1))
    for at in (5, len(trace)):
        assert fresh.remains(at, RandomLoss(7)) == used.remains(at, RandomLoss(7))


# ---- what counts as a sync

DURABLE_A = (Existing(".", 1, None), Existing("a", 2, b"old"))


def test_write_made_while_a_sync_runs_is_not_covered_by_it() -> None:
    begin, late = SyncBegin(1, "fdatasync", False, "a", 2), Write("a", 2, 4, b"late")
    trace = Trace(DURABLE_A, (Write("a", 2, 0, b"new "), begin, late, SyncEnd(1, 0)))
    assert left(trace) == {"a": b"new "}


def test_entry_made_while_its_directory_is_synced_is_not_covered() -> None:
    begin = SyncBegin(0, "fsync", True, ".", 1)
    trace = Trace(DURABLE_A, (begin, Create("b", 3), SyncEnd(0, 0)))
    assert left(trace) == {"a": b"old"}


def test_failed_sync_is_no_sync() -> None:
    begin = SyncBegin(1, "fsync", False, "a", 2)
    trace = Trace(DURABLE_A, (Truncate("a", 2, 0), begin, SyncEnd(1, 5)))
    assert left(trace) == {"a": b"old"}
    assert not trace.sync_sites()


def test_sync_in_another_thread_is_told_apart(record: Record) -> None:
    trace = record("""
        import threading
        fds = [os.open(f'{n}.log', os.O_RDWR | os.O_CREAT) for n in range(8)]
        sync()
        def work(fd):
            for n in range(25):
                os.write(fd, bytes([n]))
                os.fdatasync(fd)
        threads = [threading.Thread(target=work, args=(fd,)) for fd in fds]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    """)
    assert left(trace) == {f"{n}.log": bytes(range(25)) for n in range(8)}
    assert trace.sync_sites() == {"fsync-dir .": 1, "fdatasync #.log": 200}


def test_sites_name_kind_and_path_with_numbers_made_equal(record: Record) -> None:
    trace = record("""
        os.makedirs('t-1')
        for n in (10, 20):
            put(f't-1/{n:020}.log', b'1'); sync(f't-1/{n:020}.log')
        sync('t-1'); sync()
    """)
    assert trace.sync_sites() == {"fsync t-1/#.log": 2, "fsync-dir t-1": 1, "fsync-dir .": 1}
    assert pattern_of("7/12.log.tmp") == "7/#.log.tmp"


def test_a_class_of_syncs_or_a_single_one_can_be_taken_out(record: Record) -> None:
    trace = record("put('a', b'1'); sync('a'); sync(); put('a', b'2'); sync('a')")
    last = list(trace.syncs())[-1]
    without_one = Disk(trace, lambda sync: sync == last)
    assert without_one.remains(len(trace), DROP_ALL).read("a") == b"1"
    without_all = Disk(trace, ignoring("fsync a"))
    assert without_all.remains(len(trace), DROP_ALL).read("a") == b""
    assert not Disk(trace, ignoring("fsync-dir .")).remains(len(trace), DROP_ALL).files


def test_crash_point_beyond_the_trace_is_refused() -> None:
    with pytest.raises(IndexError, match="crash point 1 outside"):
        Disk(Trace((), ())).remains(1, DROP_ALL)
