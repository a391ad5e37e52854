"""Streams: one reader beside one of MQTT, a reader that catches up, and a crowd that does."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import IO, Final

from bench.engines import Engine
from bench.http.peers import TOPIC, start_penstock
from bench.http.rows import PAGE, fill
from bench.http.talks import dial, http_ask, http_request, http_talk, record_requests
from bench.measure import Bar, Row, alternate, engine_figures
from bench.mqtt.servers import Server
from bench.run import Bench

REQUESTS: Final = 2  # of the publisher in flight, so that it does not wait for each sync
WINDOW: Final = 8  # thousands of messages stored and not received yet
CROWD: Final = 1_000
CROWD_WANTED: Final = 40  # records each reader of the crowd waits for
CROWD_FILLER: Final = 50  # records of 10 kB between two of them: 20 MB, in chunks of about 1 MiB
CROWD_S_MAX: Final = 120.0
READS: Final = "penstock_read_chunks_total"


@contextmanager
def reader(kind: str, port: int, position: str = "latest") -> Iterator[IO[bytes]]:
    """A subscriber that is ready; a line of it comes with every thousand messages."""
    command = [sys.executable, "-m", "bench.http.reader", kind, str(port), TOPIC, position]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    try:
        _line(child.stdout)
        yield child.stdout
    finally:
        child.stdin.close()
        child.wait(30)


def _line(lines: IO[bytes]) -> None:
    if not lines.readline():
        raise RuntimeError("a reader ended: see above")


@contextmanager
def penstock(engine: Engine, directory: Path) -> Iterator[tuple[Server, int]]:
    server, mqtt_port = start_penstock(engine, directory, mqtt=True)
    try:
        server.wait_ready()
        yield server, mqtt_port
    finally:
        server.stop()


def stream_rows(bench: Bench) -> Iterator[Row]:
    """One publisher of batches, one reader of what it stores, of either kind."""
    turns: dict[str, Callable[[], float]] = {}
    with ExitStack() as stack:
        for engine in bench.engines:
            directory = stack.enter_context(bench.scratch())
            server, mqtt_port = stack.enter_context(penstock(engine, directory))
            http_ask(server.port, "PUT", f"/v1/topics/{TOPIC}")
            for kind, port in (("websocket", server.port), ("paho", mqtt_port)):
                turns[f"{engine.name} {kind}"] = partial(_live, bench, server, kind, port)
        taken = alternate(turns, bench.rounds)
    names = [engine.name for engine in bench.engines]
    yield Row(
        "WebSocket stream 1 to 1, against a paho-mqtt subscriber",
        "/s",
        engine_figures(
            names,
            {name: taken[f"{name} websocket"] for name in names},
            {name: taken[f"{name} paho"] for name in names},
        ),
        ("paho", median(taken[f"{names[-1]} paho"])),
        Bar(5, is_required=False),
    )


def _live(bench: Bench, server: Server, kind: str, port: int) -> float:
    """Messages per second, counted where they arrive; a bounded number is on its way."""
    requests = record_requests(PAGE)
    talks = [http_talk(server.port, requests) for _ in range(REQUESTS)]
    with reader(kind, port) as lines, ExitStack() as stack:
        for talk in talks:
            stack.enter_context(talk.sock)
        sent = received = 0
        begin = time.perf_counter()
        while time.perf_counter() - begin < bench.turn_s or received < sent:
            if sent - received >= WINDOW or time.perf_counter() - begin >= bench.turn_s:
                _line(lines)
                received += 1
            else:
                talk = talks[sent % REQUESTS]
                if sent >= REQUESTS:
                    talk.wait()
                talk.ask()
                sent += 1
        return received * PAGE / (time.perf_counter() - begin)


def catch_up_rows(bench: Bench) -> Iterator[Row]:
    """From the first record of many; nothing is asked of it."""
    count = 100_000 if bench.is_quick else 1_000_000
    turns: dict[str, Callable[[], float]] = {}
    with ExitStack() as stack:
        for engine in bench.engines:
            directory = stack.enter_context(bench.scratch())
            with penstock(engine, directory) as (server, _):
                http_ask(server.port, "PUT", f"/v1/topics/{TOPIC}")
                fill(server, count)
            server, _ = stack.enter_context(penstock(engine, directory))
            turns[engine.name] = partial(_catch_up, server, count)
        taken = alternate(turns, bench.rounds)
    scenario = f"WebSocket stream, catch-up of {count:,} records"
    yield Row(scenario, "/s", engine_figures(turns, taken))


def _catch_up(server: Server, count: int) -> float:
    server.wait_quiet()
    with reader("websocket", server.port, "earliest") as lines:
        begin = time.perf_counter()
        for _ in range(count // PAGE):
            _line(lines)
        return count / (time.perf_counter() - begin)


def crowd_rows(bench: Bench) -> Iterator[Row]:
    """How often is each chunk read from disk when many come back to the same place at once?"""
    taken: dict[str, list[float]] = {}
    alone: dict[str, list[float]] = {}
    times = []
    for engine in bench.engines:
        with bench.scratch() as directory:
            with penstock(engine, directory) as (server, _):
                _fill_for_crowd(server)
            for readers, reads in ((1, alone), (CROWD, taken)):
                with penstock(engine, directory) as (server, _):  # nothing is in its memory
                    taken_s = _crowd(server, readers)
                    reads[engine.name] = [_chunk_reads(server)]
            times.append(f"{engine.name} {taken_s:.1f} s")
    yield Row(
        f"chunks read from disk by {CROWD:,} resuming readers, against one reader",
        "",
        engine_figures(taken, taken, alone),
        ("one reader", alone[bench.engines[-1].name][0]),
        Bar(1.0, at_most=True),
        (f"all had all they wanted of 20 MB after: {', '.join(times)}",),
    )


def _fill_for_crowd(server: Server) -> None:
    http_ask(server.port, "PUT", f"/v1/topics/{TOPIC}")
    for _ in range(CROWD_WANTED):
        # Random, as what shrinks on its way to the disk would be read in fewer chunks.
        fillers = [os.urandom(5_000).hex() for _ in range(CROWD_FILLER)]
        body = [{"payload": "this one", "name": "wanted"}]
        body += [{"payload": text, "name": "filler"} for text in fillers]
        http_ask(server.port, "POST", f"/v1/topics/{TOPIC}/records", body)


def _crowd(server: Server, readers: int) -> float:
    """Until everybody has what it wants: server-sent events, counted."""
    path = f"/v1/topics/{TOPIC}/stream?from=0&names=wanted"
    request = http_request("GET", path, b"", "Accept: text/event-stream")
    poll = select.epoll()
    left = {}
    sockets = [dial(server.port) for _ in range(readers)]
    for sock in sockets:
        poll.register(sock.fileno(), select.EPOLLIN)
        left[sock.fileno()] = CROWD_WANTED
    by_fd = {sock.fileno(): sock for sock in sockets}
    begin = time.perf_counter()
    for sock in sockets:
        sock.sendall(request)
    while left:
        if time.perf_counter() - begin > CROWD_S_MAX:
            raise TimeoutError(f"{len(left)} of {readers} readers do not have all they want")
        for fd, _ in poll.poll(1.0):
            found = by_fd[fd].recv(1 << 18).count(b'"this one"')
            if fd in left:
                left[fd] -= found
                if left[fd] <= 0:
                    del left[fd]
    taken_s = time.perf_counter() - begin
    poll.close()
    for sock in sockets:
        sock.close()
    return taken_s


def _chunk_reads(server: Server) -> int:
    """What the broker itself counts."""
    with dial(server.port) as sock:
        sock.sendall(http_request("GET", "/metrics", b"", "Connection: close"))
        text = b"".join(iter(lambda: sock.recv(1 << 16), b"")).decode()
    (value,) = [line.split()[1] for line in text.splitlines() if line.startswith(READS)]
    return int(value)
