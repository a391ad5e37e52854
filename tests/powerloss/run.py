"""Runs real programs under the shim and turns what they did into a `Trace`.

Invariant: a trace that `run_traced` returns explains every byte of the directory as the program
left it; what went past the shim (stdio, mapped memory, another program) is an error, not a gap.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .disk import Disk
from .loss import KEEP_ALL
from .trace import Existing, Trace, TraceError, read_trace

SOURCE = Path(__file__).with_name("shim.c")
STDOUT = 1


class ProgramFailed(Exception):
    """A traced program did not end as expected; says how, with its standard error."""


@functools.cache
def build_shim() -> Path:
    """Compile shim.c, once, into a temporary directory that goes away with this process."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-powerloss-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return compile_library(SOURCE, folder / "shim.so")


def compile_library(source: Path, library: Path) -> Path:
    """Compile C into a library that can be preloaded."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        raise RuntimeError(
            "the power-loss laboratory needs a C compiler: install gcc or clang, or set CC"
        )
    flags = ["-std=gnu11", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-pthread"]
    command = [*compiler.split(), *flags, "-o", str(library), str(source), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{built.stderr}")
    return library


class Recording:
    """One trace of a directory that one or several programs change, started by the caller.

    What is in `root` now counts as durable. `root` is made if it is missing, and is durable itself:
    trace its parent to see whether the program syncs that.
    """

    def __init__(self, root: Path, trace_file: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root.resolve()
        self.trace_file = trace_file.resolve()
        if self.trace_file.is_relative_to(self.root):
            raise ValueError(f"the trace {trace_file} must lie outside the root {root}")
        self.trace_file.write_bytes(b"")
        self._existing = tuple(scan(self.root))

    def env(
        self,
        base: Mapping[str, str] | None = None,
        *,
        ack_fd: int | None = STDOUT,
        ack_file: Path | None = None,
    ) -> dict[str, str]:
        """The environment for a program to be traced; what it writes to `ack_fd` is an ack."""
        env = dict(os.environ if base is None else base)
        preloaded = env.get("LD_PRELOAD", "")
        env["LD_PRELOAD"] = f"{build_shim()}:{preloaded}" if preloaded else str(build_shim())
        env["PENSTOCK_TRACE_ROOT"] = str(self.root)
        env["PENSTOCK_TRACE_FILE"] = str(self.trace_file)
        env["PENSTOCK_TRACE_ACK_FD"] = "" if ack_fd is None else str(ack_fd)
        env["PENSTOCK_TRACE_ACKS"] = "" if ack_file is None else str(ack_file)
        return env

    def trace(self) -> Trace:
        """Read the trace once all programs have ended, and check that it explains the directory."""
        trace = read_trace(self.trace_file, self._existing)
        unexplained = missed(trace, self.root)
        if unexplained:
            raise TraceError(f"changed behind the shim's back: {', '.join(unexplained[:10])}")
        return trace


def run_traced(
    argv: Sequence[str],
    root: Path,
    env: Mapping[str, str] | None = None,
    *,
    trace_file: Path | None = None,
    timeout_s: float = 120,
    exit_codes: Sequence[int] = (0,),
) -> Trace:
    """Run a program to its end. Its standard output is its acknowledgements.

    The trace is kept beside the root, as `<root>.trace`, unless told otherwise.
    """
    recording = Recording(root, trace_file or root.with_name(root.name + ".trace"))
    ended = subprocess.run(
        list(argv),
        env=recording.env(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    if ended.returncode not in exit_codes:
        message = ended.stderr.decode(errors="replace")
        raise ProgramFailed(f"{list(argv)} ended with {ended.returncode}:\n{message}")
    return recording.trace()


def scan(root: Path) -> list[Existing]:
    """The files and directories of a real directory, itself (as ".") and parents first."""
    found = [Existing(".", root.stat().st_ino, None)]
    for folder, names, files in os.walk(root):
        for name in sorted(names + files):
            path = Path(folder, name)
            relative = path.relative_to(root).as_posix()
            if path.is_dir():
                found.append(Existing(relative, path.stat().st_ino, None))
            elif path.is_file():
                found.append(Existing(relative, path.stat().st_ino, path.read_bytes()))
    return found


def missed(trace: Trace, root: Path) -> list[str]:
    """Paths where the real directory differs from what the trace explains, right after the program.

    Empty when the shim saw everything. SQLite's `-shm` is mapped memory and not compared.
    """
    told = Disk(trace).remains(len(trace), KEEP_ALL)
    files = {known.path: known.data for known in scan(root) if known.path != "."}
    explained: dict[str, bytes | None] = dict.fromkeys(told.directories)
    explained |= {path: image.read() for path, image in told.files.items()}
    return sorted(
        path
        for path in files.keys() | explained.keys()
        if path not in files
        or path not in explained
        or (files[path] != explained[path] and not path.endswith("-shm"))
    )
