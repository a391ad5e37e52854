"""Do Mosquitto's clients and our broker understand each other, and our clients and Mosquitto?"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.doors.certificates import Authority
from tests.doors.login.test_mqtt_tls import tls_port
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.waiting import WAIT_S
from tools.peers import SEARCH

VERSIONS = pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
QOS = pytest.mark.parametrize("qos", ["0", "1", "2"])


def theirs(command: str) -> list[str]:
    path = shutil.which(f"mosquitto_{command}", path=SEARCH)
    assert path is not None, f"mosquitto_{command} is missing: make test-peers installs it"
    return [path]


def ours(command: str) -> list[str]:
    return [sys.executable, "-m", "penstock.cli.main", command]


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker, and the clients that are to be tried on it."""

    port: int
    pub: list[str]
    sub: list[str]

    def publish(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self.pub, "-h", "127.0.0.1", "-p", str(self.port), *arguments],
            input=stdin,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )

    def read(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self.sub, "-h", "127.0.0.1", "-p", str(self.port), *arguments],
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """Our broker with their clients."""
    with Served(tmp_path_factory.mktemp("penstock")) as served:
        yield Peer(served.port, theirs("pub"), theirs("sub"))


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """Their broker with our clients."""
    path = shutil.which("mosquitto", path=SEARCH)
    assert path is not None, "mosquitto is missing: make test-peers installs it"
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    config = tmp_path_factory.mktemp("mosquitto") / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    process = subprocess.Popen([path, "-c", str(config)], stderr=subprocess.PIPE)
    assert process.stderr is not None
    for line in process.stderr:
        if b"running" in line:
            break
    yield Peer(port, ours("pub"), ours("sub"))
    process.terminate()
    process.communicate(timeout=WAIT_S)


@pytest.fixture(params=["penstock", "mosquitto"])
def peer(request: pytest.FixtureRequest) -> Peer:
    found: Peer = request.getfixturevalue(request.param)
    return found


@VERSIONS
@QOS
def test_a_retained_message_goes_in_and_comes_out(peer: Peer, version: str, qos: str) -> None:
    name = f"retained/{version}/{qos}"
    flags = ("-V", version, "-q", qos)
    sent = peer.publish("-t", name, "-m", "21.5", "-r", *flags)
    assert (sent.returncode, sent.stderr) == (0, b"")
    got = peer.read("-t", f"retained/{version}/+", "-C", "1", "-v", "-W", "20", *flags)
    assert (got.returncode, got.stdout) == (0, f"{name} 21.5\n".encode())
    peer.publish("-t", name, "-n", "-r", *flags)


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["1", "2"])
def test_a_session_that_stays_gets_what_it_missed_in_order(
    peer: Peer, version: str, qos: str
) -> None:
    name = f"missed/{version}/{qos}"
    me = ("-i", f"reader-{version}-{qos}", "-c", "-V", version, "-q", qos, "-t", name)
    if version == "mqttv5":
        me = (*me, "-x", "3600")
    assert peer.read(*me, "-E").returncode == 0
    # Mosquitto 2.0.11 may stop after its window of 20 at QoS 2, with its own client as well.
    count = 60 if peer.sub == theirs("sub") else 20
    lines = [b"%d" % number for number in range(count)]
    sent = peer.publish("-t", name, "-l", "-V", version, "-q", qos, stdin=b"\n".join(lines) + b"\n")
    assert (sent.returncode, sent.stderr) == (0, b"")
    got = peer.read(*me, "-C", str(count), "-W", "30")
    assert got.returncode == 0 and got.stdout.splitlines() == lines


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@QOS
def test_their_subscribers_share_what_is_published(penstock: Peer, version: str, qos: str) -> None:
    name = f"jobs/{version}/{qos}"
    flags = ("-V", version, "-q", qos)
    # By lines, or it keeps to itself that it has subscribed.
    command = ["stdbuf", "-oL", *penstock.sub, "-h", "127.0.0.1", "-p", str(penstock.port), *flags]
    workers = []
    for _ in range(2):
        worker = subprocess.Popen(
            [*command, "-d", "-C", "10", "-W", "30", "-t", f"$share/workers/{name}"],
            stdout=subprocess.PIPE,
        )
        assert worker.stdout is not None
        assert any(b"SUBACK" in line for line in worker.stdout)
        workers.append(worker)
    lines = [b"job %d" % number for number in range(20)]
    sent = penstock.publish("-t", name, "-l", *flags, stdin=b"\n".join(lines) + b"\n")
    assert (sent.returncode, sent.stderr) == (0, b"")
    said = [worker.communicate(timeout=WAIT_S)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    got = [line for out in said for line in out.splitlines() if line.startswith(b"job ")]
    assert sorted(got) == sorted(lines)


def test_their_subscriber_is_given_history_and_a_filter(penstock: Peer) -> None:
    lines = [b"%d" % number for number in range(5)]
    penstock.publish("-t", "past", "-l", "-q", "1", stdin=b"\n".join(lines) + b"\n")
    asked = ("-V", "mqttv5", "-D", "subscribe", "user-property")
    wanted = (*asked, "from", "-1h", "-D", "subscribe", "user-property", "where", "payload > '1'")
    got = penstock.read("-t", "past", *wanted, "-C", "3", "-W", "20", "-F", "%p %P")
    assert got.returncode == 0
    assert [line.split()[0] for line in got.stdout.splitlines()] == lines[2:]
    assert b"penstock-offset:" in got.stdout


def test_what_mosquitto_says_about_itself_we_say_under_the_same_names(
    penstock: Peer, mosquitto: Peer
) -> None:
    said = []
    for peer in (penstock, mosquitto):
        reading = Peer(peer.port, peer.pub, theirs("sub"))
        found = reading.read("-t", "$SYS/broker/#", "-F", "%t", "-W", "2")
        said.append(set(found.stdout.decode().splitlines()))
    ours_said, theirs_said = said
    assert len(theirs_said) > 20
    # To know how many bytes the logs take, every file would have to be looked at.
    assert theirs_said - ours_said == {"$SYS/broker/store/messages/bytes"}


def test_our_subscriber_notices_that_a_broker_has_no_history(mosquitto: Peer) -> None:
    mosquitto.publish("-t", "no/past", "-m", "x", "-r", "-q", "1")
    got = mosquitto.read("-t", "no/past", "--from", "-1h", "-C", "1", "-W", "20")
    assert (got.returncode, got.stdout) == (0, b"x\n")
    assert b"does not support --from" in got.stderr


def test_properties_pass(peer: Peer) -> None:
    flags = ("-V", "mqttv5", "-q", "1")
    sent = peer.publish(
        *("-t", "props", "-m", "{}", "-r", *flags),
        *("-D", "publish", "content-type", "application/json"),
        *("-D", "publish", "user-property", "unit", "C"),
    )
    assert (sent.returncode, sent.stderr) == (0, b"")
    formatted = ("-F", "%C %P") if peer.sub[0].endswith("mosquitto_sub") else ("--json",)
    got = peer.read("-t", "props", "-C", "1", "-W", "20", *flags, *formatted)
    assert got.returncode == 0
    assert b"application/json" in got.stdout and b"unit" in got.stdout


@VERSIONS
def test_their_clients_log_in_and_are_refused_in_their_words(tmp_path: Path, version: str) -> None:
    add_users(tmp_path, alice="wonder")
    with Served(tmp_path) as served:
        peer = Peer(served.port, theirs("pub"), theirs("sub"))
        message = ("-t", "a", "-m", "x", "-q", "1", "-V", version)
        assert peer.publish(*message, "-u", "alice", "-P", "wonder").returncode == 0
        for flags in (("-u", "alice", "-P", "wrong"), ()):
            answer = peer.publish(*message, *flags)
            assert answer.returncode != 0
            assert b"not authori" in answer.stderr.lower() or b"user name" in answer.stderr.lower()


def test_their_clients_come_over_tls_with_and_without_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("server")
    client = authority.sign("pump")
    add_users(tmp_path / "data", alice="wonder", pump="unused")
    flags = ("--mqtts", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key))
    with Served(tmp_path / "data", *flags, "--tls-client-ca", str(authority.cert)) as served:
        peer = Peer(tls_port(served), theirs("pub"), theirs("sub"))
        message = ("-t", "a", "-m", "x", "-q", "1", "--cafile", str(authority.cert))
        certified = ("--cert", str(client[0]), "--key", str(client[1]))
        assert peer.publish(*message, *certified).returncode == 0
        assert peer.publish(*message, "-u", "alice", "-P", "wonder").returncode == 0
        assert peer.publish(*message).returncode != 0
