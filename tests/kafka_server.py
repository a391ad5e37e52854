"""A real Kafka for tests: one broker or three on 127.0.0.1, each a Java of its own.

Maven resolves the jars once into a folder of the user's cache. Brokers are KRaft nodes with both
roles, on ports that were free, and end with the tests. Every test has a prefix of its own for the
names of its topics.
"""

from __future__ import annotations

import base64
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.doors.certificates import Authority

VERSION = "4.3.1"
LOGGING_VERSION = "2.25.4"
BRIEF_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
START_S_MAX = 120  # a busy machine; about four seconds otherwise
SCRAM_USER, PLAIN_USER, PASSWORD = "scram-user", "plain-user", "a password"

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>penstock.tests</groupId><artifactId>jars</artifactId><version>1</version>
<packaging>pom</packaging>
<dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId>
<version>{}</version>{}</dependency>
"""
_ALONE = """<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>
</exclusions>"""
KAFKA_JARS = (
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    f"org.apache.logging.log4j:log4j-slf4j-impl:{LOGGING_VERSION}",
)
_numbers = itertools.count(1)


def missing() -> str:
    """Why no Kafka can be started here; empty if one can."""
    programs = [name for name in ("mvn", "java") if shutil.which(name) is None]
    if not programs:
        return ""
    return f"a real Kafka needs Maven and Java, but {' and '.join(programs)} cannot be found"


def jars() -> Path:
    """The folder with Kafka's jars; resolved by Maven if this machine does not have them yet."""
    return resolve(f"kafka-{VERSION}", KAFKA_JARS)


def resolve(name: str, artifacts: Sequence[str], *, is_alone: bool = False) -> Path:
    """A folder of the cache with these artifacts, and what they need unless `is_alone`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "penstock" / name
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    excluded = _ALONE if is_alone else ""
    wanted = [_DEPENDENCY.format(*one.split(":"), excluded) for one in artifacts]
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        pom = Path(scratch, "pom.xml")
        pom.write_text(_POM.format(dependencies="".join(wanted)))
        target = Path(scratch, "jars")
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
        subprocess.run(command, check=True, timeout=600)
        with suppress(OSError):  # another process of the tests was quicker
            target.rename(folder)
    return folder


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class KafkaBroker:
    """One broker; `kill` ends it as kill -9 does, `start` brings it back with its data."""

    def __init__(self, folder: Path, number: int, port: int, properties: str) -> None:
        self.number = number
        self.port = port
        self._folder = folder
        self._folder.mkdir()
        self._properties = folder / "server.properties"
        self._properties.write_text(properties + f"log.dirs={folder / 'data'}\n")
        self._java: subprocess.Popen[bytes] | None = None

    def format(self, cluster: str) -> None:
        # Not `-t ID`: one ID in 64 begins with a dash and would be taken for an option.
        scram = f"SCRAM-SHA-256=[name={SCRAM_USER},password={PASSWORD}]"
        command = [*self._command("kafka.tools.StorageTool"), "format", f"--cluster-id={cluster}"]
        command += ["-c", str(self._properties), "--add-scram", scram]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def _command(self, program: str) -> list[str]:
        return ["java", *BRIEF_JAVA, "-cp", f"{jars()}/*", program]

    def start(self) -> None:
        with (self._folder / "output").open("ab") as output:
            self._java = subprocess.Popen(
                [*self._command("kafka.Kafka"), str(self._properties)],
                stdout=output,
                stderr=output,
                cwd=self._folder,
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            assert self._java is not None and self._java.poll() is None, self._last_words()
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise AssertionError(f"Kafka did not start: {self._last_words()}")

    def _last_words(self) -> str:
        return (self._folder / "output").read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def freeze(self) -> None:
        assert self._java is not None
        self._java.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._java is not None
        self._java.send_signal(signal.SIGCONT)

    def _send(self, what: signal.Signals) -> None:
        if self._java is not None and self._java.poll() is None:
            self._java.send_signal(what)
            self._java.wait()


class KafkaServer:
    """A cluster of `count` brokers that share nothing with any other."""

    def __init__(self, count: int = 1) -> None:
        reason = missing()
        if reason:
            pytest.skip(reason)
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
        self.brokers: list[KafkaBroker] = []
        ports = _free_ports(6 * count)
        # Each broker sends clients of its second port to the first one, where a test can put a
        # network that it cuts.
        self.cuttable_ports = [(ports[4 * count + i], ports[5 * count + i]) for i in range(count)]
        self.sasl_ports = ports[2 * count : 3 * count]
        self.tls_ports = ports[3 * count : 4 * count]  # with a login, too
        authority = Authority(self._folder)
        self.tls_ca = authority.cert
        cert, key = authority.sign("kafka")
        keys = self._folder / "keys.pem"
        keys.write_bytes(key.read_bytes() + cert.read_bytes())
        voters = ",".join(f"{i + 1}@127.0.0.1:{ports[count + i]}" for i in range(count))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        for i in range(count):
            text = _properties(i + 1, ports[i::count])
            text += f"ssl.keystore.type=PEM\nssl.keystore.location={keys}\n"
            text += f"controller.quorum.voters={voters}\n"
            text += f"offsets.topic.replication.factor={count}\n"
            text += f"transaction.state.log.replication.factor={count}\n"
            text += f"transaction.state.log.min.isr={min(count, 2)}\n"
            broker = KafkaBroker(self._folder / str(i + 1), i + 1, ports[i], text)
            broker.format(cluster)
            self.brokers.append(broker)
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports[:count])
        self.start()

    def start(self) -> None:
        for broker in self.brokers:
            broker.start()
        for broker in self.brokers:
            broker.wait_ready()

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def new_prefix(self) -> str:
        return f"test-{os.getpid()}-{next(_numbers)}"


def _properties(number: int, ports: list[int]) -> str:
    port, controller_port, sasl_port, tls_port, cut_port, cuttable_port = ports
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return (
        "process.roles=broker,controller\n"
        f"node.id={number}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port},"
        f"SASL://127.0.0.1:{sasl_port},TLS://127.0.0.1:{tls_port},"
        f"CUTTABLE://127.0.0.1:{cuttable_port}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl_port},"
        f"TLS://127.0.0.1:{tls_port},CUTTABLE://127.0.0.1:{cut_port}\n"
        "listener.security.protocol.map="
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL,CUTTABLE:PLAINTEXT\n"
        "controller.listener.names=CONTROLLER\n"
        "inter.broker.listener.name=PLAINTEXT\n"
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256\n"
        f'listener.name.sasl.plain.sasl.jaas.config={plain} user_{PLAIN_USER}="{PASSWORD}";\n'
        f"listener.name.sasl.scram-sha-256.sasl.jaas.config={scram};\n"
        f"listener.name.tls.scram-sha-256.sasl.jaas.config={scram};\n"
        f'listener.name.tls.plain.sasl.jaas.config={plain} user_{PLAIN_USER}="{PASSWORD}";\n'
        "group.initial.rebalance.delay.ms=0\n"
        "broker.session.timeout.ms=2000\n"
        "broker.heartbeat.interval.ms=500\n"
        "auto.create.topics.enable=false\n"
        "num.network.threads=2\nnum.io.threads=2\n"
        "log.segment.delete.delay.ms=1000\n"
    )
