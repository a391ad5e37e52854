"""Follows the README as a stranger does: a fresh clone and an empty environment. `.ci/run`.

    python3 -m tools.stranger

Clones the committed state of this checkout, runs `make run` and the README's own lines against
it, over MQTT and HTTP, stops it, and starts it again compiled; then does the same with a wheel in
an empty environment. Needs a bare Python, git, make, curl and whatever pip finds packages with.
Leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools import engine
from tools.engine import ROOT

PATIENCE_S: Final = 600.0  # for one step; then something hangs
ANY_PORTS: Final = "--mqtt 127.0.0.1:0 --http 127.0.0.1:0"
# Beside these only what pip and git look at: where packages come from, through which proxy.
KEPT: Final = ("PATH", "HOME", "SSL_CERT_FILE", "SSL_CERT_DIR")
KEPT_PATTERN: Final = re.compile(r"PIP_|GIT_CONFIG_|(https?|all|no)_proxy$", re.IGNORECASE)
OPTIONAL: Final = ("numpy", "pandas", "psycopg", "pyarrow", "pyspark")


class StrangerError(Exception):
    """The README does not hold."""


def empty_environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a new login would have, and what pip needs."""
    return {
        name: value for name, value in given.items() if name in KEPT or KEPT_PATTERN.match(name)
    }


def blocks(document: str, language: str) -> list[str]:
    """The code blocks of this language in a document."""
    return re.findall(rf"^```{language}\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)


def at_ports(lines: str, mqtt: int, http: int) -> str:
    """The README's shell lines, for a broker that is not at the usual ports."""
    there = re.sub(r"\bpenstock (pub|sub) ", rf"penstock \1 -p {mqtt} ", lines)
    return there.replace("localhost:8090", f"localhost:{http}")


@dataclass(frozen=True, slots=True)
class Place:
    """A directory to run commands in, with an environment of its own."""

    directory: Path
    environment: Mapping[str, str]

    def run(self, *command: str | Path) -> str:
        """What the command prints; StrangerError if it fails."""
        ended = subprocess.run(
            [str(part) for part in command],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if ended.returncode != 0:
            shown = " ".join(map(str, command))
            raise StrangerError(f"{shown}\nended with {ended.returncode}:\n{ended.stdout}")
        return ended.stdout

    @contextmanager
    def serving(self, *command: str | Path, data: Path) -> Iterator[Served]:
        """A broker that this command starts, stopped at the end by its process id."""
        with subprocess.Popen(
            [str(part) for part in command],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as started:
            try:
                said = _read_until_ready(started)
                mqtt, http = (_port(said, scheme) for scheme in ("mqtt", "http"))
                yield Served(mqtt, http, said)
                os.kill(json.loads((data / "lock").read_text())["pid"], signal.SIGTERM)
                if started.wait(PATIENCE_S) != 0:
                    raise StrangerError(f"the broker ended with {started.returncode} when stopped")
            finally:
                if started.poll() is None:  # something failed above
                    os.killpg(started.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Served:
    """A broker that is ready."""

    mqtt: int  # port
    http: int
    said: str  # up to `ready`


def _read_until_ready(started: subprocess.Popen[bytes]) -> str:
    assert started.stdout is not None
    said = b""
    given_up_s = time.monotonic() + PATIENCE_S
    while b"\nready" not in said:
        left_s = max(given_up_s - time.monotonic(), 0)
        readable, _, _ = select.select([started.stdout], [], [], left_s)
        read = os.read(started.stdout.fileno(), 1 << 16) if readable else b""
        sys.stdout.write(read.decode(errors="replace"))
        sys.stdout.flush()
        if not read:
            raise StrangerError("the broker did not become ready; its output is above")
        said += read
    return said.decode()


def _port(said: str, scheme: str) -> int:
    found = re.search(rf"listening: {scheme}://127\.0\.0\.1:(\d+)", said)
    if not found:
        raise StrangerError(f"no line says where the broker listens for {scheme}")
    return int(found[1])


def expect(wanted: str, said: str) -> None:
    if wanted not in said:
        raise StrangerError(f"{wanted!r} is missing in:\n{said}")


def paste_shell_lines(place: Place, served: Served) -> None:
    """Run the README's shell lines; they show what they published, over MQTT and HTTP."""
    said = ""
    for lines in blocks((ROOT / "README.md").read_text(), "sh"):
        there = at_ports(lines, served.mqtt, served.http)
        print(there, end="", flush=True)
        said += (printed := place.run("bash", "-euo", "pipefail", "-c", there))
        print(printed, end="", flush=True)
    expect("sensors/42/temp 21.5\n", said)  # over MQTT
    expect('"name":"sensors/42/temp","payload":"21.5"', said)  # over HTTP
    expect('{"celsius": 21.5}\n', said)  # from the command line


def run_example(place: Place) -> None:
    """Run the README's program; it prints what the README says."""
    readme = (ROOT / "README.md").read_text()
    (example,), (expected,) = blocks(readme, "python"), blocks(readme, "text")
    expect(expected, place.run(place.directory / ".venv/bin/python", "-c", example))


def send_by_http(place: Place, penstock: Path, served: Served) -> None:
    """What is published over HTTP is received over MQTT."""
    url = f"http://127.0.0.1:{served.http}/v1/topics/default/records"
    body = json.dumps({"payload": "by HTTP", "name": "stranger/1"}).encode()
    urllib.request.urlopen(url, body, timeout=PATIENCE_S).read()
    listen = ("sub", "-p", str(served.mqtt), "-t", "stranger/#", "--from", "earliest")
    expect("stranger/1 by HTTP\n", place.run(penstock, *listen, "-C", "1", "-v"))


class Steps:
    """Tells what is done, and how long it took."""

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        print(f"\n--- {what}", flush=True)
        started_s = time.monotonic()
        yield
        load = os.getloadavg()[0]
        print(f"--- {time.monotonic() - started_s:.1f} s (load {load:.1f})", flush=True)


def try_checkout(steps: Steps, clone: Place) -> None:
    run = ("make", "run", f"ARGS={ANY_PORTS}")
    penstock, data = clone.directory / ".venv/bin/penstock", clone.directory / "penstock_data"
    with steps.step("make run, the README's lines, stop"):
        started_s = time.monotonic()
        with clone.serving(*run, data=data) as served:
            print(f"--- ready after {time.monotonic() - started_s:.1f} s", flush=True)
            paste_shell_lines(clone, served)
            run_example(clone)
            send_by_http(clone, penstock, served)
    if engine.find_compiler() is None:
        return
    lock = clone.directory / "build/engine.lock"  # held for as long as it compiles
    with steps.step("compiling the engine in the background"), lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    with steps.step("make run again"), clone.serving(*run, data=data) as served:
        expect("engine: compiled\n", served.said)
        send_by_http(clone, penstock, served)


def try_wheel(steps: Steps, clone: Place, place: Place) -> None:
    with steps.step("a wheel"):
        pip = (clone.directory / ".venv/bin/python", "-m", "pip")
        place.run(*pip, "wheel", "--no-deps", "--wheel-dir", "dist", clone.directory)
    with steps.step("the wheel in an empty environment"):
        (wheel,) = (place.directory / "dist").glob("penstock-*.whl")
        place.run(sys.executable, "-m", "venv", "empty")
        binaries = place.directory / "empty/bin"
        place.run(binaries / "python", "-m", "pip", "install", wheel)
        print(place.run(binaries / "penstock", "--version"), end="", flush=True)
        ask = f"from importlib.util import find_spec; print([*filter(find_spec, {OPTIONAL})])"
        expect("[]\n", place.run(binaries / "python", "-c", ask))
        serve: list[str | Path] = [binaries / "penstock", "serve", *ANY_PORTS.split()]
        with place.serving(*serve, data=place.directory / "penstock_data") as served:
            expect("engine: compiled\n" if engine.find_compiler() else "engine: ", served.said)
            mqtt = ("-p", str(served.mqtt), "-t", "sensors/1", "-q", "1")
            place.run(binaries / "penstock", "pub", *mqtt, "-m", "21.5")
            history = ("--from", "earliest", "-C", "1", "-v")
            said = place.run(binaries / "penstock", "sub", *mqtt, *history)
            expect("sensors/1 21.5\n", said)
            send_by_http(place, binaries / "penstock", served)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # leaves nothing behind either
    steps, started_s = Steps(), time.monotonic()
    environment = empty_environment()
    with tempfile.TemporaryDirectory(prefix="penstock-stranger-") as directory:
        clone = Place(Path(directory) / "penstock", environment)
        place = Place(Path(directory) / "elsewhere", environment)
        place.directory.mkdir()
        try:
            with steps.step("git clone"):
                place.run("git", "clone", "--quiet", ROOT, clone.directory)
            try_checkout(steps, clone)
            try_wheel(steps, clone, place)
        except StrangerError as failed:
            print(
                f"\nerror: the README does not work in a fresh checkout: {failed}", file=sys.stderr
            )
            return 1
    print(f"\n--- everything worked, in {time.monotonic() - started_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
