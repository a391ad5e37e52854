"""Kill -9 of a broker whose clients have wills: is each published afterwards, exactly once?"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from penstock import Broker
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Will
from penstock.mqtt.properties import Properties
from tests.crash.test_mqtt_kill import verify
from tests.doors.served import Served
from tests.doors.session.test_mqtt_wills import stored_wills
from tests.doors.wire import Wire, kept
from tests.waiting import WAIT_S

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
DYING = Path(__file__).with_name("dying_will_child.py")

VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])


def serve(data: Path, grace_s: int, program: Path | None = None) -> Served:
    return Served(
        data, program=program, env=dict(os.environ, PENSTOCK_MQTT__WILL_GRACE_S=str(grace_s))
    )


def connect(broker: Served, client_id: str, version: int, will: Will | None) -> Wire:
    wire = Wire(broker.port, client_id, version)
    wire.connect(will=will)
    return wire


def will_of(client_id: str, qos: int = 1, **properties: int) -> Will:
    return Will(f"w/{client_id}", client_id.encode(), qos, properties=Properties(**properties))


def reader(broker: Served) -> Wire:
    """A session that misses nothing, whatever happens to the broker."""
    wire = Wire(broker.port, "reader", MQTT_5)
    wire.connect(clean=False, properties=kept())
    wire.subscribe("w/#", qos=1)
    return wire


def published(data: Path) -> Counter[bytes]:
    verify(data)
    with Broker(data) as broker:
        return Counter(record.payload for record in broker.read("default", names="w/#"))


def wait_for_wills(data: Path, count: int) -> None:
    """Until the catalog holds so many."""
    deadline = time.monotonic() + WAIT_S
    while len(stored_wills(data)) != count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@VERSIONS
def test_killed_the_broker_publishes_the_wills_of_its_clients_once(
    tmp_path: Path, version: int
) -> None:
    broker = serve(tmp_path, 1).start()
    reader(broker).disconnect()
    ids = [f"{qos}-{number}" for qos in range(3) for number in range(10)]
    clients = [connect(broker, one, version, will_of(one, int(one[0]))) for one in ids]
    connect(broker, "polite", version, will_of("polite")).disconnect()
    wait_for_wills(tmp_path, len(ids))
    broker.kill()
    broker.start()
    with reader(broker) as watcher:
        waited_for = {one.encode() for one in ids if one[0] != "0"}
        while waited_for:
            waited_for.discard(watcher.receive().payload)
    wait_for_wills(tmp_path, 0)
    for _ in range(2):  # and never again
        broker.kill()
        broker.start()
    time.sleep(1.5)  # past the grace
    broker.stop()
    assert published(tmp_path) == Counter(one.encode() for one in ids)
    assert all(one.is_closed() for one in clients)


def test_killed_between_the_append_and_the_end_of_the_row_a_will_is_published_once(
    tmp_path: Path,
) -> None:
    broker = serve(tmp_path, 1, DYING).start()
    client = connect(broker, "client", MQTT_5, will_of("client"))
    other = connect(broker, "other", MQTT_5, will_of("other"))
    client.close()
    broker.wait_killed()
    assert other.is_closed()
    assert stored_wills(tmp_path) == ["w/client", "w/other"]
    broker = serve(tmp_path, 1).start()
    wait_for_wills(tmp_path, 0)
    broker.stop()
    assert published(tmp_path) == {b"client": 1, b"other": 1}


@VERSIONS
def test_a_client_whose_goodbye_was_answered_leaves_no_will_although_the_broker_is_killed(
    tmp_path: Path, version: int
) -> None:
    broker = serve(tmp_path, 1)
    for round_number in range(3):
        broker.start()
        ids = [f"{round_number}-{number}" for number in range(10)]
        for wire in [connect(broker, one, version, will_of(one)) for one in ids]:
            wire.disconnect()
        broker.kill()
        assert stored_wills(tmp_path) == []
    assert published(tmp_path) == {}


@VERSIONS
def test_a_client_that_comes_back_to_a_killed_broker_in_time_has_left_no_will(
    tmp_path: Path, version: int
) -> None:
    broker = serve(tmp_path, 3).start()
    clients = [connect(broker, one, version, will_of(one)) for one in ("back", "lost")]
    broker.kill()
    assert all(one.is_closed() for one in clients)
    broker.start()
    with connect(broker, "back", version, None) as back, reader(broker) as watcher:
        assert watcher.receive().payload == b"lost"
        assert back.settle() == []
        back.disconnect()
    broker.stop()
    assert published(tmp_path) == {b"lost": 1}


def test_a_delay_longer_than_the_grace_is_waited_for_also_after_a_kill(tmp_path: Path) -> None:
    broker = serve(tmp_path, 1).start()
    clients = [connect(broker, "short", MQTT_5, will_of("short"))]
    for client_id in ("patient", "gone"):
        wire = Wire(broker.port, client_id, MQTT_5)
        will = will_of(client_id, will_delay_interval=4)
        wire.connect(clean=False, properties=kept(), will=will)
        clients.append(wire)
    clients.pop().close()
    broker.kill()
    assert all(one.is_closed() for one in clients)
    broker.start()
    began_s = time.monotonic()
    with reader(broker) as watcher:
        assert watcher.receive().payload == b"short"
        assert {watcher.receive().payload for _ in range(2)} == {b"patient", b"gone"}
        assert time.monotonic() - began_s >= 3.5  # the one that was gone had begun to wait
    broker.stop()
    assert published(tmp_path) == {b"short": 1, b"patient": 1, b"gone": 1}


def test_killed_again_and_again_no_will_is_lost_or_published_twice(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    chance = random.Random(SEED)
    broker = serve(tmp_path, 0).start()
    expected: Counter[bytes] = Counter()
    for round_number in range(6):
        clients = []
        for number in range(20):
            client_id = f"{round_number}-{number}"
            version = chance.choice([MQTT_3_1_1, MQTT_5])
            wire = connect(broker, client_id, version, will_of(client_id, chance.randrange(3)))
            expected[client_id.encode()] = 1
            clients.append(wire)
        for wire in chance.sample(clients, 10):
            wire.close()  # some wills are on their way when the broker dies
        time.sleep(chance.uniform(0, 0.03))
        broker.kill()
        verify(tmp_path)
        broker.start()
        if round_number % 2:
            time.sleep(chance.uniform(0, 0.05))  # and some of those that were left
            broker.kill()
            broker.start()
    wait_for_wills(tmp_path, 0)
    broker.stop()
    assert published(tmp_path) == expected
