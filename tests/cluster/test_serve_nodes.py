"""Are several nodes on one machine one broker behind one port, whatever happens to one of them?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.log.files.directory import SOCKET_NAME
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Disconnect
from penstock.mqtt.reasons import Reason
from tests.cluster.node_world import LocalConnection
from tests.doors.served import Served
from tests.doors.wire import Wire
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

NODES = 2
CLIENTS = 40  # so many that both nodes get some: the system deals them out by chance


def environment(kafka: KafkaServer, postgres: PostgresServer) -> dict[str, str]:
    return {
        **os.environ,
        "PENSTOCK_LOG__BACKEND": "kafka",
        "PENSTOCK_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "PENSTOCK_KAFKA__PREFIX": kafka.new_prefix(),
        "PENSTOCK_KAFKA__REPLICATION": "1",
        "PENSTOCK_CATALOG__URL": postgres.url,
        "PENSTOCK_CATALOG__SCHEMA": postgres.new_schema(),
    }


@pytest.fixture
def served(kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path) -> Iterator[Served]:
    env = environment(kafka, postgres)
    with Served(tmp_path / "data", "--nodes", str(NODES), env=env) as started:
        yield started


def ask(served: Served, asked: int, path: str, body: Any = None) -> Any:
    """What one of the nodes answers to an operator."""
    target = LocalConnection(served.data / f"node-{asked}" / SOCKET_NAME)
    if body is None:
        target.request("GET", path)
    else:
        target.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = json.loads(target.getresponse().read())
    target.close()
    return answer


def nodes(served: Served, asked: int = 1) -> dict[str, Any]:
    """The live nodes, by name, as one of them lists them."""
    found = ask(served, asked, "/v1/nodes")["nodes"]
    return {one["name"]: one for one in found if one["state"] == "live"}


def pid_of(served: Served, number: int) -> int:
    holder = (served.data / f"node-{number}" / "lock").read_text()
    return int(json.loads(holder)["pid"]) if holder else 0


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_clients_of_one_port_are_on_all_nodes_and_reach_each_other(served: Served) -> None:
    wires = [Wire(served.port, f"c{number}", MQTT_5) for number in range(CLIENTS)]
    for number, wire in enumerate(wires):
        wire.connect()
        wire.subscribe(f"to/{number}", qos=1)
    wait_until(lambda: sum(one["clients"] for one in nodes(served).values()) == CLIENTS)
    found = nodes(served)
    assert found.keys() == {"node-1", "node-2"}
    assert all(one["clients"] for one in found.values())
    for number in range(CLIENTS):
        wires[number].publish(f"to/{(number + 1) % CLIENTS}", b"%d" % number, 1)
    for number, wire in enumerate(wires):
        assert wire.receive().payload == b"%d" % ((number - 1) % CLIENTS)
        wire.close()
    # Each node has a port of its own, where only its clients are.
    port = int(found["node-2"]["address"].rpartition(":")[2])
    assert port != served.port
    with Wire(port, "direct", MQTT_5) as direct:
        direct.connect()
        wait_until(lambda: nodes(served)["node-2"]["clients"] == 1)


def test_clients_of_a_drained_node_are_told_where_to_go_and_nobody_comes_to_it(
    served: Served,
) -> None:
    found = nodes(served)
    ports = [int(found[name]["address"].rpartition(":")[2]) for name in ("node-1", "node-2")]
    direct = Wire(ports[1], "direct", MQTT_5)
    direct.connect()
    ask(served, 1, "/v1/nodes/node-2/drain", {})
    sent_away = direct.expect(Disconnect)
    assert sent_away.reason == Reason.USE_ANOTHER_SERVER
    assert sent_away.properties.server_reference == found["node-1"]["address"]
    late = Wire(ports[1], "late", MQTT_5).connect()
    assert late.reason == Reason.USE_ANOTHER_SERVER
    assert late.properties.server_reference == found["node-1"]["address"]
    wires = [Wire(served.port, f"c{number}", MQTT_5) for number in range(CLIENTS)]
    assert [wire.connect().reason for wire in wires] == [Reason.SUCCESS] * CLIENTS
    wait_until(lambda: nodes(served)["node-1"]["clients"] == CLIENTS)
    ask(served, 1, "/v1/nodes/node-2/drain", {"drain": False})

    def comes_to_both() -> bool:
        wires.append(Wire(served.port, f"c{len(wires)}", MQTT_5))
        wires[-1].connect()
        return bool(nodes(served).get("node-2", {}).get("clients"))

    wait_until(comes_to_both)


def test_a_node_that_dies_is_started_again_and_all_end_together(served: Served) -> None:
    pids = [pid_of(served, number) for number in (1, 2)]
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: pid_of(served, 1) not in (0, pids[0]))
    wait_until(lambda: nodes(served, 2).keys() == {"node-1", "node-2"})
    assert pid_of(served, 2) == pids[1]
    pids = [pid_of(served, number) for number in (1, 2)]
    served.stop()
    assert not any(map(is_alive, pids))


def test_nodes_end_with_a_supervisor_that_is_killed(served: Served) -> None:
    pids = [pid_of(served, number) for number in (1, 2)]
    served.kill()
    wait_until(lambda: not any(map(is_alive, pids)))


def test_the_bridges_and_jobs_of_the_settings_are_those_of_one_node(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[[bridges]]\nname = "plant"\naddress = "mqtt://127.0.0.1:9"\n'
        '[[bridges.topics]]\nfilter = "up/#"\n'
        f'[spark.schedule]\nold = {{ every = "9d", run = "clean {tmp_path} --older-than 30d" }}\n'
    )
    env = environment(kafka, postgres)
    with Served(tmp_path / "data", "--nodes", str(NODES), "--config", str(file), env=env) as served:
        for number, count in ((1, 1), (2, 0)):
            assert len(ask(served, number, "/v1/bridges")["bridges"]) == count
            assert len(ask(served, number, "/v1/pipelines")["schedule"]) == count


def test_several_nodes_are_refused_without_kafka_and_postgresql(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--nodes", "2"]
    command += ["--data", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "--nodes 2 needs topics in Kafka and the catalog in PostgreSQL" in done.stderr
    assert not (tmp_path / "data").exists()
