"""Does the shim see all that a program does to its directory, in the order of the effects?"""

from __future__ import annotations

import errno
import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.powerloss import (
    KEEP_ALL,
    Disk,
    ProgramFailed,
    Recording,
    TraceError,
    build_shim,
)
from tests.powerloss.run import compile_library
from tests.powerloss.toys import PRELUDE, Record, left, run_toy
from tests.powerloss.trace import Ack, SyncEnd


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def record(root: Path) -> Record:
    return functools.partial(run_toy, root)


def test_every_way_of_writing_is_seen(record: Record) -> None:
    trace = record("""
        a = os.open('a', os.O_RDWR | os.O_CREAT)
        os.write(a, b'0123456789')
        os.writev(a, [b'ab', b'', b'cd'])
        os.pwrite(a, b'X', 1)
        os.pwritev(a, [b'Y', b'Z'], 3)
        os.write(os.dup(a), b'!')
        os.posix_fallocate(a, 0, 9000)
        os.ftruncate(a, 14)
        os.ftruncate(a, 8000)
        os.lseek(a, 8100, 0)
        os.write(a, bytes(100))
        b = os.open('b', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(b, b'one')
        os.pwrite(b, b'two', 0)
        os.rename('b', 'c')
        os.write(b, b'three')
        here = os.open('.', os.O_RDONLY)
        os.mkdir('d', dir_fd=here)
        os.rename('c', 'd/c', src_dir_fd=here, dst_dir_fd=here)
        os.close(os.open('d/../d/e', os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.unlink('d/e', dir_fd=here)
        with open('f', 'w') as file:
            print('text', file=file)
        if os.fork() == 0:
            os.write(b, b'four')
            os._exit(0)
        os.wait()
    """)
    remains = Disk(trace).remains(len(trace), KEEP_ALL)
    assert remains.read("a") == b"0X2YZ56789abcd".ljust(8200, b"\0")
    assert remains.read("d/c") == b"onetwothreefour"
    assert sorted(remains.files) == ["a", "d/c", "f"]


def test_what_was_there_before_is_durable(record: Record, root: Path) -> None:
    (root / "d").mkdir(parents=True)
    (root / "d/a").write_bytes(b"old" * 3000)
    trace = record("put('d/a', b'new'); os.unlink('d/a')")
    assert left(trace) == {"d/a": b"old" * 3000}


def test_acks_stand_in_the_same_order_as_writes_and_syncs(record: Record) -> None:
    trace = record("""
        for n in range(3):
            put('a', b'%d' % n); sync('a'); sync()
            print(n, flush=True)
    """)
    seen = {
        (left(trace, at).get("a"), tuple(trace.acked_lines(at))) for at in range(len(trace) + 1)
    }
    assert (b"0", ("0",)) in seen
    assert (b"1", ("0",)) in seen
    assert all(content == b"2" for content, acks in seen if "2" in acks)
    for at, event in enumerate(trace.events):
        gained = event.data if isinstance(event, Ack) else b""
        assert trace.acked(at + 1) == trace.acked(at) + gained


def test_acks_may_go_to_a_file(root: Path, tmp_path: Path) -> None:
    recording = Recording(root, tmp_path / "trace")
    acks = tmp_path / "acks"
    acks.touch()
    code = "import sys; print('no ack'); open(sys.argv[1], 'a').write('ack')"
    env = recording.env(ack_fd=None, ack_file=acks)
    subprocess.run([sys.executable, "-c", code, str(acks)], env=env, check=True)
    trace = recording.trace()
    assert trace.acked(len(trace)) == b"ack"


def test_programs_that_share_a_trace_have_one_order(root: Path, tmp_path: Path) -> None:
    recording = Recording(root, tmp_path / "trace")
    server = PRELUDE + textwrap.dedent("""
        for line in sys.stdin:
            put('a', line.encode()); sync('a'); sync()
            print(line.strip(), flush=True)
    """)
    client = textwrap.dedent("""
        import sys
        for line in sys.stdin:
            print(line.strip(), flush=True)
    """)
    with (
        subprocess.Popen(
            [sys.executable, "-c", server, str(root)],
            env=recording.env(ack_fd=None),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as serving,
        subprocess.Popen(
            [sys.executable, "-c", client],
            env=recording.env(),
            stdin=serving.stdout,
            stdout=subprocess.DEVNULL,
        ),
    ):
        assert serving.stdin
        serving.stdin.write(b"1\n2\n3\n")
        serving.stdin.close()
    trace = recording.trace()
    assert trace.acked_lines(len(trace)) == ["1", "2", "3"]
    for at in range(len(trace) + 1):
        assert left(trace, at).get("a", b"0\n") >= trace.acked(at)[-2:]


def test_threads_and_programs_that_write_the_same_bytes_keep_the_order_of_effects(
    record: Record,
) -> None:
    trace = record("""
        import threading
        put('a', b''); put('b', b'')
        programs = [os.fork() for _ in range(2)]
        def work(who):
            a = os.open('a', os.O_WRONLY)
            b = os.open('b', os.O_WRONLY | os.O_APPEND)
            for n in range(500):
                os.pwrite(a, who, n)
                os.pwrite(b, who, 0)
        whose = [bytes([65 + 2 * sum(map(bool, programs)) + n]) for n in range(2)]
        threads = [threading.Thread(target=work, args=(who,)) for who in whose]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        [os.waitpid(program, 0) for program in programs if program]
    """)
    remains = Disk(trace).remains(len(trace), KEEP_ALL)
    assert len(remains.read("a")) == 500
    assert len(remains.read("b")) == 4 * 2 * 500


def test_forking_while_other_threads_write_blocks_nobody(record: Record) -> None:
    trace = record("""
        import threading
        done = threading.Event()
        def work():
            fd = os.open('a', os.O_WRONLY | os.O_CREAT)
            while not done.is_set():
                os.pwrite(fd, b'1', 0)
        threads = [threading.Thread(target=work) for _ in range(2)]
        [thread.start() for thread in threads]
        for n in range(30):
            program = os.fork()
            if program == 0:
                put(f'{n}.child', b'1')
                os._exit(0)
            os.waitpid(program, 0)
        done.set()
        [thread.join() for thread in threads]
    """)
    assert len(Disk(trace).remains(len(trace), KEEP_ALL).files) == 31


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("a writable mmap", "import mmap; mmap.mmap(os.open('a', os.O_RDWR), 4096)[0] = 50"),
        ("symlink", "os.symlink('elsewhere', 'b')"),
        ("sendfile", "os.sendfile(os.open('b', os.O_RDWR | os.O_CREAT), os.open('a', 0), 0, 9)"),
        (
            "copy_file_range",
            "os.copy_file_range(os.open('a', 0), os.open('a', os.O_RDWR), 9, 0, 9)",
        ),
        ("O_SYNC or O_DSYNC", "os.open('a', os.O_WRONLY | os.O_DSYNC)"),
        ("pwritev2 with flags", "os.pwritev(os.open('a', os.O_RDWR), [b'1'], 0, os.RWF_DSYNC)"),
        ("a rename or link across the root", "os.rename('a', '../moved')"),
    ],
)
def test_what_cannot_be_replayed_is_refused(record: Record, what: str, code: str) -> None:
    with pytest.raises(TraceError, match=f"the program used {what} on '[ab]'"):
        record("put('a', b'1' * 4096)\n" + code)


def test_changes_behind_the_shims_back_are_noticed(record: Record) -> None:
    with pytest.raises(TraceError, match="behind the shim's back: a"):
        record("""
            import subprocess
            put('a', b'1')
            env = {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}
            subprocess.run([sys.executable, '-c', 'open("a", "w").write("unseen")'], env=env)
        """)


def test_sync_that_the_kernel_refuses_is_recorded_as_failed(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "bad_disk.c"
    source.write_text("#include <errno.h>\nint fsync(int fd) { (void)fd; errno = EIO; return -1; }")
    bad_disk = compile_library(source, tmp_path / "bad_disk.so")
    code = """
        put('a', b'1')
        try:
            sync('a')
        except OSError as error:
            assert error.errno == 5
        else:
            raise AssertionError('fsync should have failed')
    """
    recording = Recording(root, tmp_path / "trace")
    env = recording.env({**os.environ, "LD_PRELOAD": str(bad_disk)})
    argv = [sys.executable, "-c", PRELUDE + textwrap.dedent(code), str(root)]
    subprocess.run(argv, env=env, check=True)
    assert recording.trace().events[-1] == SyncEnd(begin=2, error=errno.EIO)


def test_failing_program_is_reported_with_its_standard_error(record: Record) -> None:
    with pytest.raises(ProgramFailed, match="ZeroDivisionError"):
        record("1 / 0")


def test_missing_compiler_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(RuntimeError, match="needs a C compiler"):
        build_shim.__wrapped__()
