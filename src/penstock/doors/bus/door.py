"""The bus's door: a Unix socket on which the processes of this machine subscribe and publish.

Who may open the socket's file may use the bus; it is made for the broker's user alone. A process
that goes, however it goes, is subscribed to nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.broker.bus import NOBODY, BusLoop, Subscriber
from penstock.broker.engine import Engine
from penstock.broker.limited_log import LimitedLog
from penstock.core.bus import BusTable, Ring
from penstock.doors.bus import wire
from penstock.doors.bus.wire import FrameReader, encode_frame, encode_refusal
from penstock.model.errors import PeerError, PenstockError, UnavailableError
from penstock.model.limits import MIB

OUT_BYTES_MAX: Final = 4 * MIB  # what waits for one process; beyond it calls are dropped, counted
CONNECTIONS_MAX: Final = 1_024


class BusProcess(asyncio.Protocol):
    """One process that is connected."""

    def __init__(self, door: BusDoor) -> None:
        self._door = door
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._door.processes) >= CONNECTIONS_MAX:
            self._door.refuse_process()
            transport.abort()
        self._door.processes.add(self)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        try:
            frames = self._reader.feed(data)
        except PeerError as violation:
            self._door.note_violation(str(violation))
            transport.abort()
            return
        answers = [self._answer(frame) for frame in frames]
        transport.write(b"".join(answers))
        if transport.get_write_buffer_size() > 2 * OUT_BYTES_MAX:
            transport.abort()  # it asks and asks, and never reads the answers

    def _answer(self, frame: wire.Frame) -> bytes:
        try:
            self._door.act(self, frame)
        except PenstockError as refusal:
            return encode_refusal(frame.id, refusal)
        return encode_frame(wire.DONE, frame.id)

    def call(self, id: int, data: bytes) -> bool:
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > OUT_BYTES_MAX:
            return False
        transport.write(encode_frame(wire.CALL, id, data))
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._door.forget(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class BusDoor:
    """Listens on the socket; the loop behind it stores and calls."""

    def __init__(self, engine: Engine, processes_max: int) -> None:
        self.processes: set[BusProcess] = set()
        self._ring = Ring(payload_bytes_max=engine.settings.payload_bytes_max)
        self._table: BusTable[Subscriber] = BusTable(processes_max)
        self._loop = BusLoop(engine, self._table, self._ring, self._nobody)
        self._metrics = engine.metrics
        self._log = LimitedLog("penstock.bus", asyncio.get_running_loop())
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def open(self, path: Path) -> None:
        """Bind `path`, for `serve`; a stale socket, on which nobody listens, is replaced."""
        await self._loop.open()
        await asyncio.get_running_loop().run_in_executor(None, _make_room, path)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: BusProcess(self), str(path), start_serving=False
            )
        except OSError as failed:
            raise UnavailableError(
                f"the bus cannot listen at {str(path)!r}: {failed.strerror or failed}; "
                "choose another path with --bus"
            ) from failed
        finally:
            os.umask(mask)
        self._path = path

    async def serve(self) -> None:
        """Take processes from now on."""
        assert self._server is not None
        await self._server.start_serving()

    def act(self, process: BusProcess, frame: wire.Frame) -> None:
        """Do what a process asks for; a PenstockError says why not."""
        if frame.kind == wire.SUBSCRIBE:
            self._table.subscribe(process, frame.id)
        elif frame.kind == wire.UNSUBSCRIBE:
            self._table.unsubscribe(process, frame.id)
        elif frame.kind == wire.PUBLISH:
            self._ring.put(frame.id, frame.data)
            self._loop.wake()
        else:
            raise PeerError(f"a process does not send frames of kind {frame.kind}")

    def refuse_process(self) -> None:
        self._metrics.refused["connections"] += 1
        values = {"connections_max": CONNECTIONS_MAX}
        text = "a process was refused: %(connections_max)d are connected to the bus"
        self._log.warning("connection refused", text, values)

    def note_violation(self, problem: str) -> None:
        self._metrics.violations["bus"] += 1
        text = "a process broke a rule of the bus: %(problem)s"
        self._log.warning("protocol violation", text, {"problem": problem})

    def forget(self, process: BusProcess) -> None:
        self.processes.discard(process)
        self._table.drop(process)

    def _nobody(self, id: int) -> None:
        print(f"bus: {NOBODY} (id {id})", flush=True)

    async def close(self) -> None:
        """Accept no more processes, store the waiting messages, close all connections."""
        self._log.close()
        if self._server is not None:
            self._server.close()
        await self._loop.close()
        for process in list(self.processes):
            process.close()
        if self._path is not None:
            with suppress(FileNotFoundError):
                self._path.unlink()


def _make_room(path: Path) -> None:
    """Remove a socket that a broker left behind; anything else at the path is refused."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UnavailableError(
            f"{str(path)!r} exists and is not a socket: choose another path with --bus"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise UnavailableError(
        f"another broker has its bus at {str(path)!r}: choose another path with --bus"
    )
