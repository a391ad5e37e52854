"""Clusters as people run them: processes of the Spark that pip installed, ended by their id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from penstock.pipeline.java import find_java
from tools.spark_classes import java_options

ROOT = Path(__file__).parents[3]
SPARK_HOME = Path(pyspark.__file__).parent
START_S_MAX = 120.0


def environment(scratch: Path) -> dict[str, str]:
    """Of every process of a cluster: this Python, this source tree, loopback."""
    return {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(scratch / "local"),
        "SPARK_DAEMON_JAVA_OPTS": java_options(),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def standalone(scratch: Path) -> Iterator[str]:
    """A master and a worker with one core; the master's address."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    with (
        _running(
            scratch,
            "master",
            f"{package}.master.Master --host 127.0.0.1 --port {port} --webui-port 0",
            "I have been elected leader",
        ),
        _running(
            scratch,
            "worker",
            f"{package}.worker.Worker --host 127.0.0.1 --cores 1 --memory 768m --webui-port 0 "
            f"--work-dir {scratch / 'work'} {master}",
            "Successfully registered with master",
        ),
    ):
        yield master


@contextmanager
def connect_server(scratch: Path) -> Iterator[str]:
    """A Spark Connect server with a Spark of its own; its address."""
    port = free_port()
    settings = {
        "spark.master": "local[1]",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    given = " ".join(f"--conf {key}={value}" for key, value in settings.items())
    name = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with _running(
        scratch,
        "connect",
        f"org.apache.spark.deploy.SparkSubmit --class {name} {given} spark-internal",
        "Spark Connect server started at",
        "768m",
    ):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def _running(
    scratch: Path, name: str, command: str, ready: str, memory: str = "256m"
) -> Iterator[None]:
    """A process of Spark's; begins once its log says that it is ready."""
    scratch.mkdir(exist_ok=True)
    log = scratch / f"{name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *command.split()],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(scratch) | {"SPARK_CONNECT_MODE": "0", "SPARK_DAEMON_MEMORY": memory},
            start_new_session=True,
        )
    try:
        deadline_s = time.monotonic() + START_S_MAX
        while ready not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.1)
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
