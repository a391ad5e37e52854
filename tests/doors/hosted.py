"""A broker with its doors open in a thread of the test: quick to start, and its counters show.

An exception that nobody caught inside the broker fails the test when it closes.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.app.server import Server
from penstock.broker.exchange import Exchange
from penstock.config import load, server_settings
from penstock.doors.http.door import HttpDoor
from penstock.doors.loop import DoorLoop
from penstock.doors.mqtt.door import MqttDoor
from penstock.doors.selector import DoorSelector
from tests import on_kafka

T = TypeVar("T")

START_S = 60.0


class Hosted:
    """A running broker on a data directory; `settings` are paths of settings with their values.

    `config` is a settings file.
    """

    def __init__(self, data: Path, *, config: Path | None = None, **settings: Any) -> None:
        flags = {
            "server.data": str(data),
            "mqtt.listen": "127.0.0.1:0",
            "http.listen": "127.0.0.1:0",
            **on_kafka.flags_of(data),
        }
        flags |= {path.replace("__", "."): value for path, value in settings.items()}
        self._settings = server_settings(load(config, flags))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._server: Server | None = None
        self._thread = threading.Thread(target=self._run, name="hosted-broker", daemon=True)
        self._ready: Future[None] = Future()
        self.troubles: list[str] = []
        self.port = 0
        self.ports: dict[str, int] = {}  # by scheme

    def _run(self) -> None:
        selector = DoorSelector()
        with asyncio.Runner(loop_factory=lambda: DoorLoop(selector)) as runner:
            try:
                runner.run(self._serve(selector))
            except BaseException as error:
                self.troubles.append(f"the loop ended: {error!r}")
                if not self._ready.done():
                    self._ready.set_exception(error)

    async def _serve(self, selector: DoorSelector) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._note)
        self._stop = asyncio.Event()
        self._server = Server(self._settings, selector)
        await self._server.open()
        for address in self._server.addresses:
            scheme, _, place = address.partition("://")
            if place:  # the bus has a path instead
                self.ports[scheme] = int(place.rsplit(":", 1)[1])
        self.port = self.ports.get("mqtt", 0)
        self._ready.set_result(None)
        await self._stop.wait()
        await self._server.close()

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.troubles.append(f"{context.get('message')}: {context.get('exception')!r}")

    def call(self, work: Callable[[], T]) -> T:
        """Run something on the broker's loop, between its events."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        assert self._loop is not None
        self._loop.call_soon_threadsafe(run)
        return done.result(START_S)

    def run(self, work: Callable[[Server], Coroutine[Any, Any, T]]) -> T:
        """Run something that suspends on the broker's loop; its result."""
        assert self._loop is not None and self._server is not None
        return asyncio.run_coroutine_threadsafe(work(self._server), self._loop).result(START_S)

    def wait_past_us(self, wait_us: int) -> None:
        """Until that much time has passed on the broker's clock."""
        until_us = self.exchange.engine.clock.now_us() + wait_us
        while self.exchange.engine.clock.now_us() < until_us:
            time.sleep(0.05)

    def wait_idle(self) -> None:
        """Until nothing that the door or the store began is under way."""
        deadline = time.monotonic() + START_S
        while self.call(lambda: not self._is_idle()):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def _is_idle(self) -> bool:
        tasks = self.door.serving.tasks or self.exchange.store.tasks
        return not tasks and all(one.wills.is_idle for one in self.door.worlds.values())

    @property
    def door(self) -> MqttDoor:
        assert self._server is not None and self._server._mqtt is not None
        return self._server._mqtt

    @property
    def http(self) -> HttpDoor:
        assert self._server is not None and self._server._http is not None
        return self._server._http

    @property
    def exchange(self) -> Exchange:
        return self.door.exchange

    @property
    def dropped(self) -> Counter[str]:
        return self.call(lambda: Counter(self.exchange.engine.metrics.dropped))

    def stored_sessions(self) -> dict[str, bool]:
        """Client id -> is it connected, as the catalog on disk has it."""
        with sqlite3.connect(f"file:{self._settings.data}/catalog.db?mode=ro", uri=True) as stored:
            rows = stored.execute("select client_id, is_connected from sessions").fetchall()
        return {client_id: bool(is_connected) for client_id, is_connected in rows}

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.result(START_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread.is_alive():
            assert self._loop is not None and self._stop is not None
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(START_S)
        if kind is None:
            assert self.troubles == [], self.troubles
