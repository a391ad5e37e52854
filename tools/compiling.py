"""Compiles the engine, in the foreground or behind a broker that runs already.

The outcome is whole or absent. It is built in build/engine.new, becomes build/engine by one
rename once everything is compiled from sources that did not change meanwhile, and reaches the
sources only through `install`, which `make run` and `make setup` call before they start anything.
So nothing changes under a broker while it compiles, and an interrupted compile leaves nothing that
is ever loaded. One compile at a time: the compiling process holds a lock, which ends with it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from tools import engine, packages

STAGED = engine.ROOT / "build" / "engine"  # as below src/: a whole outcome, to be installed
UNFINISHED = STAGED.with_name("engine.new")
FAILED = STAGED.with_name("engine.failed")  # digest of sources that could not be compiled
LOCK = STAGED.with_name("engine.lock")
STAMP: Final = "digest"  # in STAGED: of the sources it was made from

NICENESS: Final = 19  # in the background: whatever else runs goes first
NEWS_S_MAX: Final = 5.0  # a line of progress at least this often
NEWS_S_MIN: Final = 1.0

Tell = Callable[[str], None]


class CompileError(Exception):
    """The engine could not be compiled; `said` is all that the tools said."""

    def __init__(self, reason: str, said: str = "") -> None:
        super().__init__(reason)
        self.said = said


@contextmanager
def lock(tell: Tell) -> Iterator[None]:
    """Wait until nobody else compiles in this checkout, and keep it so."""
    with _open_lock() as file:
        started_s = told_s = time.monotonic()
        while not _take(file):
            if told_s == started_s or time.monotonic() - told_s > NEWS_S_MAX:
                told_s = time.monotonic()
                tell(
                    f"{told_s - started_s:3.0f} s  waiting for another process that is compiling it"
                )
            time.sleep(0.2)
        yield


def _open_lock() -> TextIO:
    LOCK.parent.mkdir(exist_ok=True)
    return LOCK.open("w")


def _take(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def install() -> bool:
    """Put the staged files next to the sources if they were made from the present sources."""
    now_ns = time.time_ns()
    try:
        if (STAGED / STAMP).read_text() != engine.digest():
            return False
    except FileNotFoundError:
        return False
    with _undisturbed():
        engine.remove_extensions()
        for path in sorted(STAGED.rglob("*.so")):
            shutil.copyfile(path, copy := STAGED / "copy")
            os.utime(copy, ns=(now_ns, now_ns))  # made from what was there at this moment
            copy.rename(engine.SOURCE / path.relative_to(STAGED))
    return True


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let Ctrl-C wait: half an engine is worse than none."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def has_failed() -> bool:
    """Whether the present sources were compiled before, in vain."""
    return FAILED.is_file() and FAILED.read_text() == engine.digest()


def compile_engine(tell: Tell) -> None:
    """Stage the engine compiled from the present sources; the caller holds the lock."""
    digest = engine.digest()
    shutil.rmtree(UNFINISHED, ignore_errors=True)
    try:
        _build(tell)
    except CompileError:
        FAILED.write_text(digest)
        raise
    if engine.digest() != digest:
        raise CompileError("the sources changed while they were compiled")
    FAILED.unlink(missing_ok=True)
    (UNFINISHED / STAMP).write_text(digest)
    shutil.rmtree(STAGED, ignore_errors=True)
    UNFINISHED.rename(STAGED)


def _build(tell: Tell) -> None:
    command = [sys.executable, "-u", "setup.py", "--verbose", "build_ext"]
    command += ["--build-lib", str(UNFINISHED)]
    environment = {**os.environ, "PENSTOCK_COMPILE": "1"}  # all of it or an error
    progress = Progress(engine.present(), tell)
    with subprocess.Popen(
        command,
        cwd=engine.ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as running:
        assert running.stdout is not None
        output = running.stdout.fileno()
        while True:
            if not select.select([output], [], [], NEWS_S_MAX)[0]:
                progress.tick()
                continue
            read = os.read(output, 1 << 16)
            if not read:
                break
            progress.feed(read.decode(errors="replace"))
    if running.returncode != 0:
        raise CompileError("the engine could not be compiled", progress.said())


class Progress:
    """Turns what mypy, mypyc and the C compiler print into a line every few seconds."""

    _READ = re.compile(r"LOG: +Parsing \S+ \((penstock[.\w]*)\)")
    _CHECKED = re.compile(r"LOG: +Writing (penstock[.\w]+) ")
    _BUILDS = re.compile(r"building '([.\w]+)' extension")

    def __init__(self, modules: list[str], tell: Tell) -> None:
        self._modules = modules
        self._tell = tell
        self._started_s = time.monotonic()
        self._told_s = self._started_s
        self._pattern: re.Pattern[str] | None = None  # of the lines that this step prints
        self._checked = 0
        self._built = 0
        self._step = "mypyc reads the sources"
        self._line = ""  # the last one, which may go on
        self._kept: list[str] = []

    def feed(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if not line.startswith("LOG:"):
                self._kept.append(line)
            self._look(line)

    def _look(self, line: str) -> None:
        before = self._pattern
        if found := self._READ.match(line):
            self._pattern = self._READ
            self._step = f"mypyc reads {found[1]}"
        elif (found := self._CHECKED.match(line)) and found[1] in self._modules:
            self._pattern = self._CHECKED
            self._checked += 1
            self._step = f"mypyc translates {found[1]} ({self._checked} of {len(self._modules)})"
        elif found := self._BUILDS.match(line):
            self._pattern = self._BUILDS
            self._built += 1
            what = "the engine" if found[1].endswith("__mypyc") else found[1]
            self._step = f"C compiler: {what} (file {self._built} of {len(self._modules) + 1})"
        else:
            return
        if self._pattern != before or time.monotonic() - self._told_s >= NEWS_S_MIN:
            self.tick()

    def tick(self) -> None:
        self._told_s = time.monotonic()
        self._tell(f"{self._told_s - self._started_s:3.0f} s  {self._step}")

    def said(self) -> str:
        """What a person wants to see when something failed."""
        return "\n".join([*self._kept, self._line])


def start_in_background() -> bool:
    """Compile in a process of its own, which outlives this one; False if one does already."""
    with _open_lock() as file:
        if not _take(file):
            return False
        # The process inherits the lock, so at no moment is it free.
        command = [sys.executable, "-m", "tools.compiling", "--lock", str(file.fileno())]
        with packages.COMPILE_LOG.open("w") as log:
            subprocess.Popen(
                command,
                cwd=engine.ROOT,
                pass_fds=[file.fileno()],
                start_new_session=True,  # Ctrl-C ends the broker, not this
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
    return True


def main() -> int:
    """What `start_in_background` starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", type=int, required=True, help="file number of the lock we hold")
    held = parser.parse_args().lock
    os.set_inheritable(held, False)  # compilers that outlive this process must not keep it
    os.nice(NICENESS)

    def tell(text: str) -> None:
        packages.say("engine", text)

    packages.ensure_mypyc()
    try:
        compile_engine(tell)
    except CompileError as failed:
        print(failed.said, file=sys.stderr)
        packages.say("engine", f"{failed}; the broker runs interpreted")
        return 1
    packages.say("engine", "compiled; the next `make run` uses it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
