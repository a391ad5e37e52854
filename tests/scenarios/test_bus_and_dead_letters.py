"""What no client publishes: do bus messages and dead letters reach every kind of reader, once?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock import Bus
from penstock.model.limits import NAME_BYTES_MAX, NAME_LEVELS_MAX
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from tests.cli.mqtt.test_cli_pub_sub import Sub
from tests.doors.hosted import Hosted
from tests.http.asking import Asking
from tests.scenarios.actors import EACH_QOS, Actor, numbers

DELIVERIES = 5  # after so many a record of a group is dead
BUS_QOS = 1  # what a bus message is stored with
MESSAGES = numbers(0, 20)

bus_topics = count(1)  # a test takes one that no other has
EACH_FILTER = pytest.mark.parametrize("is_exact", [True, False], ids=["exact", "wildcard"])


@pytest.fixture(scope="module")
def bus_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bus") / "socket"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, bus_path: Path) -> Iterator[Hosted]:
    with Hosted(tmp_path_factory.mktemp("data"), bus__path=str(bus_path)) as hosted:
        yield hosted


@pytest.fixture
def asking(broker: Hosted) -> Iterator[Asking]:
    with Asking(broker.ports["http"]) as client:
        yield client


class Audience:
    """One reader of each kind, of one filter at one QoS; `hear` closes them."""

    def __init__(self, broker: Hosted, who: str, filter: str, qos: int) -> None:
        self._broker = broker
        self._who = who
        self._filter = filter
        self._qos = qos
        self._live = {
            "clean 3.1.1": self._reader("clean3", MQTT_3_1_1),
            "clean 5": self._reader("clean5"),
            "persistent": self._reader("stays", stays=True),
        }
        away = self._reader("away", stays=True)
        away.subscribe(filter, qos=qos)
        away.disconnect()
        for one in self._live.values():
            one.subscribe(filter, qos=qos)
        member = self._live["shared"] = self._reader("share")
        member.subscribe(f"$share/{who}/{filter}", qos=qos)
        tail = self._live["from latest"] = self._reader("tail")
        tail.subscribe_feed(filter, qos=qos, from_="latest")

    def _reader(self, kind: str, version: int = MQTT_5, *, stays: bool = False) -> Actor:
        return Actor(self._broker, f"{self._who}-{kind}", version, stays=stays)

    def expect(self, payloads: list[bytes], name: str, stored_qos: int) -> None:
        """Everybody gets these, once, in order, and at the QoS that their record has at most."""
        qos = min(stored_qos, self._qos)
        for kind, reader in self._live.items():
            assert heard_by(reader, len(payloads)) == [(one, name, qos) for one in payloads], kind
        back = self._reader("away", stays=True)
        assert back.was_known
        kept = payloads if qos else []  # QoS 0 is not kept for who is away
        assert heard_by(back, len(kept)) == [(one, name, qos) for one in kept]
        history = self._reader("history")
        history.subscribe_feed(self._filter, qos=self._qos, from_="earliest")
        assert heard_by(history, len(payloads)) == [(one, name, qos) for one in payloads]
        for reader in (*self._live.values(), back, history):
            assert reader.settle() == []
            reader.close()
        again = self._reader("stays", stays=True)
        assert again.was_known and again.settle() == []
        again.close()


def heard_by(reader: Actor, messages: int) -> list[tuple[bytes, str, int]]:
    heard = []
    for _ in range(messages):
        message = reader.receive()
        assert not message.retain and not message.dup
        heard.append((message.payload, message.name, message.qos))
    return heard


def bury(asking: Asking, topic: str, jobs: int) -> None:
    """A group gives all jobs of a topic back until they are dead."""
    group = f"/v1/topics/{topic}/groups/workers"
    for _ in range(DELIVERIES):
        left = jobs
        while left:
            given = asking.ask("POST", f"{group}/fetch", {"limit": jobs, "wait": 10}).json
            left -= len(given["records"])
            back = {"receipt": given["receipt"], "reason": "cannot read it"}
            assert asking.ask("POST", f"{group}/nack", back).status == 200


def records(asking: Asking, topic: str) -> list[Any]:
    found: list[Any] = asking.ask("GET", f"/v1/topics/{topic}/records").json["records"]
    return found


@EACH_FILTER
@EACH_QOS
def test_bus_messages_reach_every_reader_once(
    broker: Hosted, bus_path: Path, name: str, qos: int, is_exact: bool
) -> None:
    """Does every kind of reader get what the bus publishes, in order and once?"""
    number = next(bus_topics)
    audience = Audience(broker, name, f"bus/{number}" if is_exact else f"+/{number}", qos)
    with Bus.connect(bus_path) as bus:
        for one in MESSAGES:
            bus.publish(number, one)
        audience.expect(MESSAGES, f"bus/{number}", BUS_QOS)


@EACH_FILTER
@EACH_QOS
@pytest.mark.parametrize("job_qos", [0, 1, 2])
def test_dead_letters_reach_every_reader_once_under_a_name_of_their_own(
    broker: Hosted, asking: Asking, name: str, job_qos: int, qos: int, is_exact: bool
) -> None:
    """Do their readers get each once, and those of the jobs' names each job, but no letter?"""
    asking.ask("PUT", f"/v1/topics/{name}")
    job, letter = f"{name}/a/b", f"{name}.dead/{name}/a/b"
    watching = Actor(broker, f"{name}-jobs", MQTT_5)
    watching.subscribe(f"{name}/#", qos=2)
    audience = Audience(broker, name, letter if is_exact else f"{name}.dead/#", qos)
    with Actor(broker, f"{name}-p", MQTT_5) as boss:
        for one in MESSAGES:
            boss.publish(job, one, job_qos)
    bury(asking, name, len(MESSAGES))
    audience.expect(MESSAGES, letter, job_qos)
    assert heard_by(watching, len(MESSAGES)) == [(one, job, job_qos) for one in MESSAGES]
    assert watching.settle() == []
    watching.close()
    stored = records(asking, f"{name}.dead")
    assert {one["name"] for one in stored} == {letter}
    assert {dict(one["headers"])["penstock.dead.name"] for one in stored} == {job}


def publish_to_bus(path: Path, number: int, payloads: list[bytes]) -> None:
    with Bus.connect(path) as bus:
        for one in payloads:
            bus.publish(number, one)


@EACH_FILTER
@EACH_QOS
def test_penstock_sub_prints_bus_messages_and_dead_letters(
    broker: Hosted, bus_path: Path, asking: Asking, name: str, qos: int, is_exact: bool
) -> None:
    """Does the command show both as they come, each once?"""
    number = next(bus_topics)
    asking.ask("PUT", f"/v1/topics/{name}")
    letter = f"{name}.dead/{name}/a"
    filters = (f"bus/{number}", letter) if is_exact else (f"bus/{number}/#", f"{name}.dead/+/a")
    arguments = [part for filter in filters for part in ("-t", filter)]
    wanted = MESSAGES[:4]
    with ExitStack() as programs:
        limit = str(2 * len(wanted) + 1)
        port = broker.port
        sub = programs.enter_context(Sub(port, *arguments, "-q", str(qos), "-v", "-C", limit))
        publish_to_bus(bus_path, number, wanted)
        with Actor(broker, f"{name}-p", MQTT_5) as boss:
            boss.publish_all(f"{name}/a", len(wanted), 1)
        bury(asking, name, len(wanted))
        publish_to_bus(bus_path, number, [b"the last"])
        code, out = sub.result()
    lines = out.decode().splitlines()
    bus_lines = [line for line in lines if line.startswith("bus/")]
    assert code == 0 and len(lines) == 2 * len(wanted) + 1
    assert bus_lines == [f"bus/{number} {one.decode()}" for one in [*wanted, b"the last"]]
    dead_lines = [line for line in lines if not line.startswith("bus/")]
    assert dead_lines == [f"{letter} {one.decode()}" for one in wanted]


def test_messages_of_qos_0_do_not_overtake_the_bus(
    broker: Hosted, bus_path: Path, asking: Asking, name: str
) -> None:
    """A client publishes under the name of the bus meanwhile: do readers see the log's order?"""
    number = next(bus_topics)
    reader = Actor(broker, name, MQTT_5)
    reader.subscribe(f"bus/{number}")
    clients = [b"client %d" % at for at in range(300)]
    buses = [b"bus %d" % at for at in range(300)]
    sender = threading.Thread(target=publish_to_bus, args=(bus_path, number, buses))
    with Actor(broker, name + "p", MQTT_5) as writer:
        sender.start()
        for one in clients:
            writer.publish(f"bus/{number}", one)
        sender.join()
        live = reader.receive_all(len(clients) + len(buses))
        assert reader.settle() == []
    reader.close()
    found = asking.ask("GET", f"/v1/topics/bus/records?limit=10000&names=bus/{number}").json
    assert live == [one["payload"].encode() for one in found["records"]]


@pytest.mark.parametrize(
    "job",
    [
        lambda topic: f"{topic}/" + "x" * (NAME_BYTES_MAX - len(topic) - 1),
        lambda topic: f"{topic}/" + "ü" * ((NAME_BYTES_MAX - len(topic) - 1) // 2),
        lambda topic: topic + "/x" * (NAME_LEVELS_MAX - 1),
    ],
    ids=["bytes", "characters", "levels"],
)
def test_a_name_that_becomes_too_long_is_cut_and_its_header_has_all_of_it(
    broker: Hosted, asking: Asking, name: str, job: Callable[[str], str]
) -> None:
    """Is the dead letter of a job with the longest name there still to be read, and known?"""
    asking.ask("PUT", f"/v1/topics/{name}")
    with Actor(broker, name, MQTT_5) as reader:
        reader.subscribe(f"{name}.dead/#", qos=1)
        stored = asking.ask("POST", f"/v1/topics/{name}/records", {"payload": 1, "name": job(name)})
        assert stored.status == 200
        bury(asking, name, 1)
        letter = reader.receive()
        assert reader.settle() == []
    whole = f"{name}.dead/{job(name)}"
    assert whole.startswith(letter.name) and letter.name != whole
    assert NAME_BYTES_MAX - 1 <= len(letter.name.encode()) <= NAME_BYTES_MAX or (
        letter.name.count("/") == NAME_LEVELS_MAX - 1
    )
    assert ("penstock.dead.name", job(name)) in letter.properties.user_properties
    (dead,) = records(asking, f"{name}.dead")
    assert (dead["name"], dict(dead["headers"])["penstock.dead.name"]) == (letter.name, job(name))


def test_a_message_that_the_broker_program_publishes_is_delivered(
    broker: Hosted, name: str
) -> None:
    """A program that serves and publishes in one: does its own publish reach MQTT clients?"""
    with Actor(broker, name, MQTT_5) as reader:
        reader.subscribe(f"{name}/#", qos=2)
        broker.run(lambda server: server.broker.create_topic(name))
        broker.run(lambda server: server.broker.publish_many(["a", "b"], name, name=f"{name}/x"))
        broker.run(lambda server: server.broker.publish("c", name, headers={"k": "v"}))
        broker.run(lambda server: server.broker.publish("d", name, name=f"{name}/x"))
        assert reader.receive_all(4) == [b"a", b"b", b"c", b"d"]
        assert reader.settle() == []
