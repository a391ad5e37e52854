"""`penstock serve --nodes N`: nodes on one machine behind the same ports, each a process.

The supervisor serves nobody. It chooses the ports, starts the nodes, starts one again that ends,
and ends them together. All nodes listen on the common ports, where the system deals connections
out (SO_REUSEPORT); each has an MQTT port of its own, which it advertises.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from penstock.app.systemd import READY, STOPPING, ServiceManager
from penstock.config import OFF, ServerSettings, environment, parse_address
from penstock.doors.link import shown_address
from penstock.model.errors import InvalidSetting, UnavailableError

AGAIN_S_MIN: Final = 0.5  # before a node that ended is started again; doubles
AGAIN_S_MAX: Final = 30.0
STEADY_S: Final = 60.0  # a node that lived for so long is started again at once
HTTP_HOST: Final = "127.0.0.1"  # for requests of other nodes
LOCAL_HOSTS: Final = {"", "0.0.0.0", "::"}
_READY: Final = "ready"
_PARENT_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG of prctl(2)


def serve_nodes(settings: ServerSettings, count: int, flags: list[str]) -> int:
    """Run until SIGTERM or SIGINT; the exit code. `flags` are those of each node."""
    if settings.node is None:
        raise InvalidSetting(
            f"--nodes {count} needs topics in Kafka and the catalog in PostgreSQL, where several "
            'nodes work together: set [log] backend = "kafka", [kafka] bootstrap and [catalog] '
            "url (`penstock migrate` moves a data directory there), or serve without --nodes"
        )
    if settings.bus != OFF:
        raise InvalidSetting(
            f"--nodes {count} cannot share the bus {settings.bus!r}, which belongs to one process: "
            "set [bus] path = 'off', or serve without --nodes"
        )
    with _reserved(settings) as listeners:
        return asyncio.run(_Supervisor(settings, count, flags, listeners).run())


@contextmanager
def _reserved(settings: ServerSettings) -> Iterator[dict[str, str]]:
    """The flags of the common listeners; ports that nobody chose stay the same for all nodes.

    The sockets are bound here and never listened on, so no connection comes to them.
    """
    wanted = {
        "mqtt": settings.mqtt,
        "mqtts": settings.mqtts,
        "http": settings.http,
        "https": settings.https,
    }
    chosen: dict[str, str] = {}
    with ExitStack() as held:
        for flag, address in wanted.items():
            if address == OFF:
                continue
            host, port = parse_address(address)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            one = held.enter_context(socket.socket(family))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                one.bind((host, port))
            except OSError as failed:
                raise UnavailableError(
                    f"{flag} cannot listen on {address}: {failed.strerror}; choose another "
                    "address, or stop the program that uses this one"
                ) from failed
            chosen[flag] = shown_address(host, one.getsockname()[1])
        yield chosen


def _end_with_parent() -> None:
    """In a new process: the system sends SIGTERM when the supervisor ends, however it does."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


class _Supervisor:
    """The nodes of one machine."""

    def __init__(
        self, settings: ServerSettings, count: int, flags: list[str], listeners: dict[str, str]
    ) -> None:
        self._settings = settings
        self._count = count
        self._flags = flags
        self._listeners = listeners
        self._stopping = asyncio.Event()
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._ready: set[int] = set()
        self._has_begun = False  # all nodes have been ready once
        self._code = 0
        self._manager = ServiceManager(environment())

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
        feeding = asyncio.create_task(self._manager.feed_watchdog())
        await asyncio.gather(*[self._keep(number) for number in range(1, self._count + 1)])
        feeding.cancel()
        return self._code

    def _stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            self._manager.tell(STOPPING)
            print(f"stopping {len(self._running)} nodes", flush=True)
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, what: signal.Signals) -> None:
        for process in self._running.values():
            if process.returncode is None:
                process.send_signal(what)

    async def _keep(self, number: int) -> None:
        """Start a node, and start it again when it ends."""
        loop = asyncio.get_running_loop()
        wait_s = AGAIN_S_MIN
        while not self._stopping.is_set():
            started_s = loop.time()
            code = await self._run_once(number)
            if self._stopping.is_set():
                self._code = self._code or max(code, 0)
                return
            if not self._has_begun:  # the settings are wrong, or something is out of reach
                self._code = code if code > 0 else 1
                self._stop()
                return
            wait_s = AGAIN_S_MIN if loop.time() - started_s > STEADY_S else wait_s
            print(
                f"penstock: node-{number} ended with code {code}; it is started again in "
                f"{wait_s:g} s",
                file=sys.stderr,
                flush=True,
            )
            try:
                await asyncio.wait_for(self._stopping.wait(), wait_s)
            except TimeoutError:
                wait_s = min(wait_s * 2, AGAIN_S_MAX)

    async def _run_once(self, number: int) -> int:
        data = self._settings.data / f"node-{number}"
        listeners = [f"--{flag}={address}" for flag, address in self._listeners.items()]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock.cli.main", "serve"),
            *(*self._flags, *listeners, f"--data={data}"),
            stdout=asyncio.subprocess.PIPE,
            env=self._environment(number),
            process_group=0,  # Ctrl-C reaches the supervisor alone, which passes it on
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        self._running[number] = process
        if self._stopping.is_set():
            process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        async for line in process.stdout:
            text = line.decode(errors="replace").rstrip("\n")
            print(f"node-{number}: {text}", flush=True)
            if text.startswith(_READY):
                self._note_ready(number)
        del self._running[number]
        return await process.wait()

    def _note_ready(self, number: int) -> None:
        self._ready.add(number)
        if len(self._ready) == self._count and not self._has_begun:
            self._has_begun = True
            for flag, address in self._listeners.items():
                print(f"listening: {flag}://{address}")
            print(f"ready: {self._count} nodes; stop with Ctrl-C", flush=True)
            self._manager.tell(READY)

    def _environment(self, number: int) -> dict[str, str]:
        """Each node has a name, and ports for MQTT and HTTP that are free now."""
        host = parse_address(self._settings.mqtt)[0] if self._settings.mqtt != OFF else "127.0.0.1"
        port, http_port = _free_port(host), _free_port(HTTP_HOST)
        given = self._settings.node
        base = "" if given is None or not given.name else f"{given.name}-"
        reached = socket.gethostname() if host in LOCAL_HOSTS else host
        passed = {key: value for key, value in environment().items() if key not in _OURS}
        if number > 1:  # bridges and jobs are one node's
            passed["PENSTOCK_NODE__RUNS_JOBS"] = "false"
        return (
            passed
            | {
                "PENSTOCK_NODE__NAME": f"{base}node-{number}",
                "PENSTOCK_NODE__LISTEN": shown_address(host, port),
                "PENSTOCK_NODE__ADVERTISE": shown_address(reached, port),
                "PENSTOCK_NODE__SHARES_PORTS": "true",
            }
            | self._http(http_port)
        )

    def _http(self, port: int) -> dict[str, str]:
        """Where the other nodes reach a node: on this machine alone, unless the settings say."""
        given = self._settings.node
        if given is not None and (given.http_listen != OFF or given.http_advertise):
            return {}
        return {"PENSTOCK_NODE__HTTP_LISTEN": shown_address(HTTP_HOST, port)}


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        one.bind((host, 0))
        port: int = one.getsockname()[1]
        return port


_OURS: Final = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}  # systemd asks the supervisor
