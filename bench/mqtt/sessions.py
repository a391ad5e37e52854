"""What sessions cost: those that are away while others publish, and those that all come back.

Directories are prepared through the library of the engine that will serve them: sessions straight
into the catalog, records through AsyncBroker. Then a real broker is started on them and met over
real connections.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from bench.engines import run_once
from bench.measure import Bar, Figure, Row, alternate, engine_figures
from bench.mqtt.flows import ingest
from bench.mqtt.rules import USER
from bench.mqtt.servers import HOST, Server, start_penstock
from bench.mqtt.wire import PAYLOAD, allow_many_sockets, connect, connect_packet, publish_packet
from bench.run import Bench
from penstock import AsyncBroker
from penstock.catalog.catalog import Catalog

AWAY: Final = 100_000
BATCH: Final = 64  # packets of one send
STORM_CLIENTS: Final = 10_000
STORM_RECORDS: Final = 10  # for each client
FOREIGN_FEW: Final = 100_000
FOREIGN_MANY: Final = 1_000_000
CONNECTING_MAX: Final = 500  # clients of the storm on their way in at once
STORM_S_MAX: Final = 300.0
ACK: Final = b"\x40\x02"


def put_sessions(directory: str, count: int, owner: str) -> None:
    """Persistent sessions that are away, each subscribed to a name of its own at QoS 1."""
    data = Path(directory)

    async def main() -> None:
        async with AsyncBroker(data) as broker:
            await broker.create_topic("default", exist_ok=True)
        # Here, because other checkouts (`--beside`) may have these modules elsewhere.
        from penstock.catalog.database.interface import Database
        from penstock.catalog.database.sqlite import SqliteDatabase
        from penstock.catalog.database.thread import InlineRunner

        runner = InlineRunner(SqliteDatabase(data / "catalog.db"))
        catalog = await Catalog.open(runner)

        def work(database: Database) -> None:
            database.execute_many(
                "insert into sessions (tenant, client_id, owner, incarnation, expiry_s,"
                " is_connected, disconnected_at) values ('default', $1, $2, $3, 4294967295, 0, 0)",
                [(f"storm-{number}", owner, number + 1) for number in range(count)],
            )
            database.execute_many(
                "insert into subscriptions (tenant, client_id, filter, qos, options, identifier,"
                " since) values ('default', $1, $2, 1, 0, 0, '{}')",
                [(f"storm-{number}", f"d/{number}") for number in range(count)],
            )
            database.execute(
                "update counters set next_value = $1 where counter = 'incarnation'", count + 1
            )

        await runner.run(work)
        await catalog.close()

    asyncio.run(main())


def put_records(directory: str, clients: int, foreign: int) -> None:
    """STORM_RECORDS for each client, spread evenly among records of other names."""
    data = Path(directory)

    async def main() -> None:
        async with AsyncBroker(data) as broker:
            own = clients * STORM_RECORDS
            step = max(foreign // own, 1)
            for start in range(0, own, 1_000):
                waiting = [
                    broker.publish(PAYLOAD, "default", name=f"d/{number % clients}")
                    for number in range(start, start + 1_000)
                ]
                for number in range(start, start + 1_000, 100):
                    others = [PAYLOAD] * (100 * step)
                    waiting.append(
                        broker.publish_many(others, "default", name=f"f/{number % 977}")  # type: ignore[arg-type]
                    )
                await asyncio.gather(*waiting)
            await broker.engine.upkeep.look_after_all()

    asyncio.run(main())


def away_rows(bench: Bench) -> Iterator[Row]:
    """Publishing beside many sessions that are away."""
    count = AWAY // 10 if bench.is_quick else AWAY
    packet = publish_packet()
    names = [engine.name for engine in bench.fastest]
    with bench.scratch() as directory, ExitStack() as stack:
        running: dict[str, Server] = {}
        for engine in bench.fastest:
            owner = USER if engine.has_rules else ""
            for kind, sessions in (("none", 0), ("away", count)):
                name = f"{engine.name} {kind}"
                run_once(engine, f"{__name__}:put_sessions", str(directory / name), sessions, owner)
                running[name] = start_penstock(engine, directory / name)
                stack.callback(running[name].stop)
        for server in running.values():
            server.wait_ready()

        def turn(server: Server) -> float:
            publisher = connect(server)
            try:
                sent = packet * BATCH
                return ingest([publisher], sent, len(sent), bench.turn_s) / len(packet)
            finally:
                publisher.close()

        turns = {name: (lambda server=server: turn(server)) for name, server in running.items()}
        taken = alternate(turns, bench.rounds)
    away = {name: taken[f"{name} away"] for name in names}
    figures = engine_figures(names, away)
    for name in names:
        slower = Figure.of(taken[f"{name} none"], away[name])  # how much longer a message takes
        figures[name] = replace(figures[name], ratio=slower.ratio)
    yield Row(
        f"publish beside {count:,} sessions that are away, time against none",
        "/s",
        figures,
        ("none", median(taken[f"{names[-1]} none"])),
        Bar(1.1, at_most=True, goal=1.0),
    )


class Storm:
    """All clients of a directory come back at once and take what waits for them."""

    def __init__(self, server: Server, clients: int) -> None:
        self._server = server
        self._left = dict.fromkeys(range(clients), STORM_RECORDS)
        self._waiting = list(range(clients))
        self._epoll = select.epoll()
        self._sockets: dict[int, tuple[socket.socket, int, bytearray]] = {}
        self._arriving = 0

    def run(self) -> float:
        """Seconds until every client has everything."""
        begin_s = time.perf_counter()
        while self._left:
            while self._waiting and self._arriving < CONNECTING_MAX:
                self._connect(self._waiting.pop())
            for fd, _ in self._epoll.poll(1.0):
                self._receive(fd)
            if time.perf_counter() - begin_s > STORM_S_MAX:
                raise RuntimeError(f"{len(self._left)} clients still wait")
        elapsed_s = time.perf_counter() - begin_s
        for sock, _, _ in self._sockets.values():
            sock.close()
        self._epoll.close()
        return elapsed_s

    def _connect(self, number: int) -> None:
        sock = socket.create_connection((HOST, self._server.port), 20)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(connect_packet(self._server, f"storm-{number}", clean_start=False))
        sock.setblocking(False)
        self._sockets[sock.fileno()] = (sock, number, bytearray())
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._arriving += 1

    def _receive(self, fd: int) -> None:
        sock, number, held = self._sockets[fd]
        held += sock.recv(65536)
        answers = bytearray()
        while len(held) >= 2 and len(held) >= 2 + held[1]:
            body = held[2 : 2 + held[1]]
            kind = held[0] >> 4
            del held[: 2 + held[1]]
            if kind == 2:
                self._arriving -= 1
                assert body[1] == 0, f"client {number} was refused: {bytes(body)!r}"
            elif kind == 3:
                name_end = 2 + int.from_bytes(body[:2], "big")
                assert body[2:name_end] == b"d/%d" % number
                answers += ACK + body[name_end : name_end + 2]
                self._left[number] -= 1
                if self._left[number] == 0:
                    del self._left[number]
        if answers:
            sock.sendall(answers)


def storm_rows(bench: Bench) -> Iterator[Row]:
    """Everybody comes back to a topic that holds a little for each and much for others."""
    allow_many_sockets()
    clients = STORM_CLIENTS // 10 if bench.is_quick else STORM_CLIENTS
    few, many = FOREIGN_FEW, FOREIGN_MANY
    if bench.is_quick:
        few, many = few // 10, many // 10
    names = [engine.name for engine in bench.fastest]
    sizes = {"few": few, "many": many}
    taken: dict[str, list[float]] = {f"{name} {size}": [] for name in names for size in sizes}
    for _ in range(bench.rounds if bench.is_quick else 3):
        for size, foreign in sizes.items():
            for engine in bench.fastest:
                owner = USER if engine.has_rules else ""
                with bench.scratch() as directory:
                    data = str(directory)
                    run_once(engine, f"{__name__}:put_sessions", data, clients, owner)
                    run_once(engine, f"{__name__}:put_records", data, clients, foreign)
                    server = start_penstock(engine, directory)
                    try:
                        server.wait_ready()
                        connect(server).close()  # a password is hashed once, not for each client
                        taken[f"{engine.name} {size}"].append(Storm(server, clients).run())
                    finally:
                        server.stop()
    slow, quick = ({name: taken[f"{name} {size}"] for name in names} for size in ("many", "few"))
    yield Row(
        f"{clients:,} sessions come back to {STORM_RECORDS} records each among {many:,} others",
        "s",
        engine_figures(names, slow, quick),
        (f"{few:,} others", median(quick[names[-1]])),
        Bar(1.5, at_most=True, goal=1.1),
    )
