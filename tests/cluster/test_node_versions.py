"""Do nodes of the version before and of this one work side by side, and take over from each other?

The version before is the commit PREVIOUS. Its sources come from the repository and run interpreted,
with the packages of this checkout. A change of what nodes write for each other (records and marks
in Kafka, tables, notifications, requests that are passed on) has to pass with the landed commit
before it; then PREVIOUS may be moved to that commit.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.cluster.node_queues import Queues
from tests.cluster.node_world import NodeWorld
from tests.cluster.traffic import Traffic
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until
from tools.engine import ROOT

PREVIOUS = "8ce4f61b3e79c8cf22c8ac3631bdcb87b0a20629"
OLD, NEW = 0, 1  # a node of each version


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the version before."""
    folder = tmp_path_factory.mktemp("previous")
    packed = subprocess.run(
        ["git", "archive", "--format=tar", PREVIOUS, "src"], cwd=ROOT, capture_output=True
    )
    assert packed.returncode == 0, (
        f"commit {PREVIOUS} is not in this repository: {packed.stderr.decode().strip()}; "
        "fetch the whole history (git fetch --unshallow)"
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


class VersionWorld(NodeWorld):
    """Nodes of which some run the sources of an earlier version."""

    def __init__(
        self, kafka: KafkaServer, postgres: PostgresServer, folder: Path, previous: Path
    ) -> None:
        env = {"PYTHONPATH": str(previous)}
        super().__init__(kafka, postgres, folder, own={OLD: env})
        found = subprocess.run(
            [sys.executable, "-c", "import penstock; print(penstock.__file__)"],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=True,
        )
        assert Path(found.stdout).is_relative_to(previous), found.stdout

    def become_new(self, at: int) -> None:
        """A node that does not run is started as this version from now on."""
        env = self[at].env
        assert env is not None
        env.pop("PYTHONPATH")


def test_messages_sessions_shares_and_requests_go_between_nodes_of_two_versions(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path, previous: Path
) -> None:
    with VersionWorld(kafka, postgres, tmp_path, previous) as world:
        for there, here in ((OLD, NEW), (NEW, OLD)):
            reader, _ = world.connect(here, f"reader{here}", is_clean=True)
            reader.subscribe(f"a{here}/#", qos=2)
            writer, _ = world.connect(there, f"writer{here}", is_clean=True)
            for qos in (0, 1, 2):
                writer.publish(f"a{here}/b", b"%d" % qos, qos, retain=qos == 2)
            for qos in (0, 1, 2):
                message = reader.receive()
                assert message.payload == b"%d" % qos
                reader.acknowledge(message)
            moved, answer = world.connect(there, f"reader{here}")
            assert answer.session_present
            writer.publish(f"a{here}/b", b"moved", 1)
            assert moved.receive().payload == b"moved"
            wait_until(lambda here=here: f"a{here}/b" in world.retained(here))
        members = [world.connect(at, f"member{at}", is_clean=True)[0] for at in (OLD, NEW)]
        for member in members:
            member.subscribe("$share/crew/s/#", qos=1)
        for number in range(20):
            members[number % 2].publish(f"s/{number}", b"%d" % number, 1)
        got: list[int] = []
        while len(got) < 20:
            for member in members:
                message = member.poll(0.05)
                if message is not None and hasattr(message, "payload"):
                    got.append(int(message.payload))
                    member.acknowledge(message)
        assert sorted(got) == list(range(20))
        queues = Queues(world)
        queues.ready("orders")
        consumer = "/v1/topics/orders/consumers/billing"
        queues.done(NEW, "PUT", consumer, {"from": "earliest"})
        queues.publish(OLD, "orders", [str(number) for number in range(30)])
        read: list[str] = []
        while len(read) < 30:
            body = {"limit": 7, "wait": 10}
            fetched = queues.done(len(read) % 2, "POST", consumer + "/fetch", body)
            read += [one["payload"] for one in fetched["records"]]
        assert sorted(read, key=int) == [str(number) for number in range(30)]


def test_each_version_recovers_a_killed_node_of_the_other_and_nothing_is_lost(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path, previous: Path
) -> None:
    with (
        VersionWorld(kafka, postgres, tmp_path, previous) as world,
        Traffic(world, "versions", 1, is_full=True) as traffic,
    ):
        traffic.go_on(50)
        world[NEW].kill()
        traffic.go_on(50)  # all clients are at the node of the version before
        world[NEW].start()
        traffic.go_on(50)
        world[OLD].kill()
        traffic.go_on(50)
        world.become_new(OLD)
        world[OLD].start()
        traffic.go_on(50)
        print(traffic.settle())
