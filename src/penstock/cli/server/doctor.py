"""`penstock doctor`: is this machine ready, and if not, what to do about it."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.cli.output import (
    EXIT_DONE,
    EXIT_REFUSED,
    human_bytes,
    printable,
    show_json,
    show_table,
)
from penstock.cli.target import add_target, target_path
from penstock.core.engine_kind import engine_kind
from penstock.log.files.directory import read_holder
from penstock.model.errors import RefusedError

GOOD: Final = "good"
HINT: Final = "hint"  # it works; something could be better
BAD: Final = "bad"

SYNCS: Final = 50
SYNC_BYTES: Final = 4_096
SLOW_SYNC_S: Final = 0.02
FILES_MIN: Final = 10_000  # open files; each client and each segment needs one
FREE_PART_MIN: Final = 0.1
CLOCK_FIRST_S: Final = 1_700_000_000  # a clock that says less was never set
TIMEX_BYTES: Final = 512  # more than Linux' struct timex
TIME_ERROR: Final = 5  # of adjtimex(2): the clock is not synchronised
PORTS: Final = (("mqtt", 1883), ("http", 8090))


class Finding(NamedTuple):
    what: str
    state: str
    says: str
    advice: str = ""


def add_commands(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        description="Check what a broker on this machine needs. The exit code is 1 if something is "
        "missing. Nothing is changed.",
    )
    add_target(doctor, has_tenant=False)
    doctor.set_defaults(run=examine)


def examine(options: argparse.Namespace) -> int:
    place = _existing(target_path(options))
    checks: tuple[Callable[[], list[Finding]], ...] = (
        check_python,
        check_engine,
        check_packages,
        check_java,
        lambda: check_disk(place),
        lambda: check_syncs(place),
        check_open_files,
        lambda: check_ports(target_path(options)),
        check_clock,
    )
    findings = [finding for check in checks for finding in check()]
    if options.json:
        show_json([finding._asdict() for finding in findings])
    else:
        show_table(["check", "state", "found"], [finding[:3] for finding in findings])
        advice = [finding for finding in findings if finding.advice]
        if advice:
            print()
        for finding in advice:
            print(printable(f"{finding.what}: {finding.advice}"))
    return EXIT_REFUSED if any(one.state == BAD for one in findings) else EXIT_DONE


def _existing(path: Path) -> Path:
    """The directory, or the first one above it that exists: it is on the same disk."""
    return next(one for one in (path.resolve(), *path.resolve().parents) if one.is_dir())


def check_python() -> list[Finding]:
    return [Finding("python", GOOD, f"{platform.python_version()} ({sys.executable})")]


def check_engine() -> list[Finding]:
    kind = engine_kind()
    if kind == "compiled":
        return [Finding("engine", GOOD, kind)]
    return [
        Finding(
            "engine",
            HINT,
            kind,
            "the compiled engine is several times faster: install a C compiler (gcc) and run "
            "`make setup`, or install a wheel with a compiled engine",
        )
    ]


def check_packages() -> list[Finding]:
    from penstock.pipeline.packages import check_spark

    try:
        check_spark()
    except RefusedError as missing:
        return [Finding("spark", HINT, "not installed", f"only for pipelines: {missing}")]
    from importlib.metadata import version

    return [Finding("spark", GOOD, f"pyspark {version('pyspark')}")]


def check_java() -> list[Finding]:
    from penstock.pipeline.java import find_java

    try:
        return [Finding("java", GOOD, str(find_java()))]
    except RefusedError as missing:
        return [Finding("java", HINT, "not found", f"only for pipelines: {missing}")]


def check_disk(place: Path) -> list[Finding]:
    usage = shutil.disk_usage(place)
    says = f"{human_bytes(usage.free)} of {human_bytes(usage.total)} free at {place}"
    if not os.access(place, os.W_OK):
        advice = "give another directory with --at, or change its owner"
        return [Finding("disk", BAD, f"{place} cannot be written", advice)]
    if usage.free < usage.total * FREE_PART_MIN:
        advice = "free some space, shorten the retention of topics, or give a larger disk with --at"
        return [Finding("disk", HINT, says, advice)]
    return [Finding("disk", GOOD, says)]


def check_syncs(place: Path) -> list[Finding]:
    """How long this disk takes to make a small write durable: what one publish waits for."""
    times = []
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".penstock-doctor-") as file:
            for at in range(SYNCS):
                started_s = time.perf_counter()
                os.pwrite(file.fileno(), bytes(SYNC_BYTES), at * SYNC_BYTES)
                os.fdatasync(file.fileno())
                times.append(time.perf_counter() - started_s)
    except OSError as failed:
        return [Finding("sync", BAD, f"{place}: {failed.strerror}", "give another --at")]
    middle_s, slowest_s = statistics.median(times), max(times)
    says = f"{middle_s * 1e3:.2f} ms, at most {slowest_s * 1e3:.2f} ms"
    if middle_s > SLOW_SYNC_S:
        advice = (
            "each acknowledged message waits for a sync: use an SSD, publish in batches, or set "
            'durability = "os" for topics that may lose the last second in a power failure'
        )
        return [Finding("sync", HINT, says, advice)]
    return [Finding("sync", GOOD, says)]


def check_open_files() -> list[Finding]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FILES_MIN:
        advice = (
            "each client needs one: raise the hard limit (ulimit -Hn, LimitNOFILE= in systemd) "
            f"to {FILES_MIN:,} or more"
        )
        return [Finding("open files", HINT, f"at most {most:,}", advice)]
    shown = "no limit" if most == resource.RLIM_INFINITY else f"at most {most:,}"
    return [Finding("open files", GOOD, shown)]


def check_ports(data: Path) -> list[Finding]:
    holder = read_holder(data)
    if holder is not None and holder.get("addresses"):
        addresses = ", ".join(holder["addresses"])
        return [Finding("ports", GOOD, f"a broker has {data} open and listens on {addresses}")]
    findings = []
    for scheme, port in PORTS:
        try:
            with socket.create_server(("127.0.0.1", port)):
                findings.append(Finding(f"port {port}", GOOD, f"free for {scheme}"))
        except OSError:
            advice = f"another program uses it: choose another one with --{scheme} 127.0.0.1:PORT"
            findings.append(Finding(f"port {port}", HINT, "in use", advice))
    return findings


def check_clock() -> list[Finding]:
    now_s = time.time()
    if now_s < CLOCK_FIRST_S:
        advice = "set the clock: records are stamped with it, and positions by time use it"
        return [Finding("clock", BAD, time.strftime("%Y-%m-%d", time.gmtime(now_s)), advice)]
    shown = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))
    if is_clock_adrift():
        advice = (
            "nothing keeps it in step: start an NTP client (systemd-timesyncd, chrony), so that "
            "times of records can be compared with those of other machines"
        )
        return [Finding("clock", HINT, f"{shown}, not synchronised", advice)]
    return [Finding("clock", GOOD, shown)]


def is_clock_adrift() -> bool:
    """Does the kernel say that nothing synchronises its clock? False where it cannot be asked."""
    import ctypes

    try:
        ask = ctypes.CDLL(None, use_errno=True).adjtimex
    except (AttributeError, OSError):
        return False
    return (
        int(ask(ctypes.create_string_buffer(TIMEX_BYTES))) == TIME_ERROR
    )  # asks only: no mode is set
