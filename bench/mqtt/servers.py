"""The brokers that are compared, each a process of its own on a port of loopback.

Mosquitto runs with persistence off and without bounds that could make it drop; Penstock runs with
its defaults, or with the rules and quotas of bench/mqtt/rules.py. Every process is
ended by its own id.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.engines import Engine, run_once
from bench.mqtt.rules import PASSWORD, SETTINGS, USER, put_rules
from bench.run import Bench
from penstock import Broker

HOST: Final = "127.0.0.1"
MOSQUITTO: Final = "/usr/sbin/mosquitto"
MOSQUITTO_NAME: Final = "mosquitto"
CEILING: Final = "ceiling"
START_S_MAX: Final = 20.0
QUIET_S_MAX: Final = 20.0
QUIET_STEP_S: Final = 0.1
TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")

# 0 is "no limit" for both maxima.
MOSQUITTO_SETTINGS: Final = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence {persistence}
max_queued_messages 0
max_inflight_messages 0
set_tcp_nodelay true
log_dest none
user root
"""

SERVE: Final = "from penstock.cli.main import main; raise SystemExit(main())"


class Server:
    """A running process that takes MQTT connections."""

    def __init__(
        self, name: str, port: int, child: subprocess.Popen[bytes], *, asks_login: bool = False
    ) -> None:
        self.name = name
        self.port = port
        self.user = USER if asks_login else None
        self.password = PASSWORD if asks_login else None
        self._child = child

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait_ready(self) -> None:
        end_s = time.monotonic() + START_S_MAX
        while True:
            if self._child.poll() is not None:
                raise RuntimeError(f"{self.name} ended with code {self._child.returncode}")
            try:
                socket.create_connection((HOST, self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.02)

    def cpu_s(self) -> float:
        """Processor time the process has used so far, of all its threads."""
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) * TICK_S

    def resident_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"no VmRSS of {self.name}")

    def wait_quiet(self) -> None:
        """Until it has nothing left to do, such as sealing, that would disturb the next turn."""
        end_s = time.monotonic() + QUIET_S_MAX
        before_s = self.cpu_s()
        while time.monotonic() < end_s:
            time.sleep(QUIET_STEP_S)
            now_s = self.cpu_s()
            if now_s - before_s <= TICK_S:
                return
            before_s = now_s

    def stop(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(30)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def start_mosquitto(directory: Path, *, persists: bool = False, more: str = "") -> Server:
    """`persists`: it saves what it holds every half hour and at its end, its default."""
    port = free_port()
    settings = directory / f"mosquitto-{port}.conf"
    kept = f"true\npersistence_location {directory}/" if persists else "false"
    settings.write_text(MOSQUITTO_SETTINGS.format(port=port, persistence=kept) + more)
    child = subprocess.Popen([MOSQUITTO, "-c", str(settings)], stderr=subprocess.DEVNULL)
    return Server(MOSQUITTO_NAME, port, child)


def start_penstock(engine: Engine, directory: Path) -> Server:
    port = free_port()
    command = [sys.executable, "-c", SERVE, "serve", "--data", str(directory)]
    if engine.has_rules:
        run_once(engine, f"{put_rules.__module__}:{put_rules.__name__}", str(directory))
        settings = directory.with_name(f"{directory.name}-{port}.toml")
        settings.write_text(SETTINGS)
        command += ["--config", str(settings)]
    child = subprocess.Popen(
        [*command, "--mqtt", f"{HOST}:{port}", "--http", "off", *engine.quiet],
        env=engine.environment,
        stdout=subprocess.DEVNULL,
    )
    return Server(engine.name, port, child, asks_login=engine.has_rules)


def make_loose_topic(data: str, topic: str) -> None:
    """A topic that is kept at level os, in a data directory of its own."""
    with Broker(Path(data)) as broker:
        broker.create_topic(topic, durability="os")


def start_sink(packet_bytes: int, *, acks: bool, splits: bool) -> Server:
    """Who does no more than move bytes: the generator's own ceiling."""
    port = free_port()
    arguments = [str(port), str(packet_bytes), str(int(acks)), str(int(splits))]
    return Server(
        CEILING, port, subprocess.Popen([sys.executable, "-m", "bench.mqtt.sink", *arguments])
    )


@contextmanager
def servers(
    bench: Bench,
    packet_bytes: int,
    *,
    acks: bool = False,
    splits: bool = False,
    loose_topic: str = "",
) -> Iterator[dict[str, Server]]:
    """One of each, ready; their data is gone afterwards. `loose_topic` is kept at level os."""
    with bench.scratch() as directory, ExitStack() as stack:
        running = [start_mosquitto(directory)]
        stack.callback(running[0].stop)
        for engine in bench.engines:
            data = directory / engine.name
            if loose_topic:
                run_once(engine, f"{__name__}:make_loose_topic", str(data), loose_topic)
            running.append(start_penstock(engine, data))
            stack.callback(running[-1].stop)
        running.append(start_sink(packet_bytes, acks=acks, splits=splits))
        stack.callback(running[-1].stop)
        for server in running:
            server.wait_ready()
        yield {server.name: server for server in running}
