"""Are several nodes one broker: whatever door of whatever node a client uses?"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.mqtt.packets import Disconnect, Pubcomp, Publish, Pubrec, Pubrel, Will
from penstock.mqtt.reasons import Reason
from tests.cluster.node_world import NodeWorld
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until


@pytest.fixture
def world(kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path) -> Iterator[NodeWorld]:
    with NodeWorld(kafka, postgres, tmp_path) as made:
        yield made


def test_nodes_list_each_other(world: NodeWorld) -> None:
    for at in (0, 1):
        assert world.states(at) == {"n0": "live", "n1": "live"}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_published_on_one_node_reaches_a_subscriber_of_another(
    world: NodeWorld, qos: int
) -> None:
    reader, _ = world.connect(0, "reader", is_clean=True, expiry_s=0)
    reader.subscribe("a/#", qos=qos)
    writer, _ = world.connect(1, "writer", is_clean=True, expiry_s=0)
    for number in range(20):
        writer.publish("a/b", str(number).encode(), qos)
    got = []
    for _ in range(20):
        message = reader.receive()
        got.append(int(message.payload))
        reader.acknowledge(message)
    assert got == list(range(20))


def test_a_session_moves_to_the_node_its_client_connects_to(world: NodeWorld) -> None:
    first, _ = world.connect(0, "mover", is_clean=True)
    first.subscribe("a/#", qos=1)
    second, answer = world.connect(1, "mover")
    assert answer.session_present
    gone = first.expect(Disconnect)
    assert gone.reason == Reason.SESSION_TAKEN_OVER
    writer, _ = world.connect(0, "writer", is_clean=True, expiry_s=0)
    writer.publish("a/b", b"one", 1)
    assert second.receive().payload == b"one"


def test_sessions_of_a_killed_node_go_on_at_another(world: NodeWorld) -> None:
    reader, _ = world.connect(0, "reader", is_clean=True)
    reader.subscribe("a/#", qos=1)
    writer, _ = world.connect(1, "writer", is_clean=True, expiry_s=0)
    writer.publish("a/b", b"before", 1)
    assert reader.receive().payload == b"before"
    world[0].kill()
    writer.publish("a/b", b"while away", 1)
    again, answer = world.connect(1, "reader")
    assert answer.session_present
    payloads = set()
    while b"while away" not in payloads:
        message = again.receive()
        payloads.add(message.payload)
        again.acknowledge(message)
    world[0].start()
    wait_until(lambda: world.states(1) == {"n0": "live", "n1": "live"})


def test_what_one_node_makes_is_known_to_the_others_within_moments(world: NodeWorld) -> None:
    world.ask(0, "/v1/topics/orders", {}, "PUT")
    world.ask(0, "/v1/users/ann", {"password": "a long password"}, "PUT")
    wait_until(lambda: "orders" in [one["topic"] for one in world.ask(1, "/v1/topics")["topics"]])
    wait_until(lambda: "ann" in [one["user"] for one in world.ask(1, "/v1/users")["users"]])
    world.ask(1, "/v1/topics/orders", method="DELETE")
    wait_until(
        lambda: "orders" not in [one["topic"] for one in world.ask(0, "/v1/topics")["topics"]]
    )


def test_a_message_of_qos_2_is_stored_once_when_its_node_is_killed_before_the_release(
    world: NodeWorld,
) -> None:
    reader, _ = world.connect(1, "reader", is_clean=True)
    reader.subscribe("a/#", qos=2)
    writer, _ = world.connect(0, "writer", is_clean=True)
    writer.send(Publish(name="a/b", payload=b"once", qos=2, packet_id=7))
    writer.expect(Pubrec)
    world[0].kill()
    again, answer = world.connect(1, "writer")
    assert answer.session_present
    again.send(Publish(name="a/b", payload=b"once", qos=2, packet_id=7, dup=True))
    again.expect(Pubrec)
    again.send(Pubrel(7))
    again.expect(Pubcomp)
    again.publish("a/b", b"last", 1)
    got = []
    while b"last" not in got:
        message = reader.receive()
        got.append(message.payload)
        reader.acknowledge(message)
    assert got == [b"once", b"last"]
    world[0].start()


def test_the_will_of_a_client_of_a_killed_node_is_published_once(world: NodeWorld) -> None:
    reader, _ = world.connect(1, "reader", is_clean=True)
    reader.subscribe("#", qos=1)
    will = Will("wills/one", b"gone", qos=1)
    world.connect(0, "mortal", is_clean=True, expiry_s=0, will=will)
    world[0].kill()
    message = reader.receive()
    assert message.payload == b"gone"
    reader.acknowledge(message)
    world[0].start()
    writer, _ = world.connect(0, "writer", is_clean=True, expiry_s=0)
    writer.publish("a/b", b"last", 1)
    assert reader.receive().payload == b"last"


def test_a_node_frozen_longer_than_its_lease_ends_when_it_wakes(world: NodeWorld) -> None:
    reader, _ = world.connect(0, "reader", is_clean=True)
    reader.subscribe("a/#", qos=1)
    world.freeze(0)
    again, answer = world.connect(1, "reader")
    assert answer.session_present
    world.thaw(0)
    assert reader.is_closed()
    world[0].wait_ended(3)
    again.publish("a/b", b"one", 1)
    assert again.pick(Publish).payload == b"one"
    world[0].start()


def test_sessions_of_all_nodes_are_listed_shown_and_ended_at_any_node(world: NodeWorld) -> None:
    here = [world.connect(at, f"here{at}", is_clean=True)[0] for at in (0, 1)]
    for at in (0, 1):
        here[at].subscribe("a/#", qos=1)
        away, _ = world.connect(at, f"away{at}", is_clean=True)
        away.subscribe("a/#", qos=1)
        away.disconnect()
        away.close()
    here.append(world.connect(1, "brief", is_clean=True, expiry_s=0)[0])
    names = {f"{word}{at}" for word in ("here", "away") for at in (0, 1)} | {"brief"}

    def listed(at: int) -> dict[str, bool]:
        found = world.ask(at, "/v1/sessions")["sessions"]
        shown = {one["client_id"]: one["is_connected"] for one in found}
        return {name: shown[name] for name in names & shown.keys()}

    everybody = {name: not name.startswith("away") for name in names}
    for at in (0, 1):
        wait_until(lambda at=at: listed(at) == everybody)
    (following,) = world.ask(0, "/v1/sessions?limit=1&after=here0")["sessions"]
    assert following["client_id"] == "here1"
    assert world.ask(0, "/v1/sessions/here1")["is_connected"]
    there, _ = world.connect(1, "here1")
    answer = world.ask(0, "/v1/sessions/here1/kick", {})
    assert answer["was_connected"]
    assert there.expect(Disconnect).reason == Reason.ADMINISTRATIVE_ACTION
    again, answered = world.connect(1, "here1")
    assert answered.session_present
    world.ask(0, "/v1/sessions/here1", method="DELETE")
    assert again.expect(Disconnect).reason == Reason.ADMINISTRATIVE_ACTION
    world.ask(0, "/v1/sessions/away1", method="DELETE")
    world.ask(1, "/v1/sessions/brief/kick", {"forget": True})
    for at in (0, 1):
        wait_until(lambda at=at: listed(at) == {"here0": True, "away0": False})


def test_a_drained_node_sends_its_clients_away_and_is_not_ready(world: NodeWorld) -> None:
    reader, _ = world.connect(0, "reader", is_clean=True)
    reader.subscribe("a/#", qos=1)
    world.ask(1, "/v1/nodes/n0/drain", {})
    assert reader.expect(Disconnect).reason == Reason.USE_ANOTHER_SERVER
    assert world.states(1)["n0"] == "draining"
    _, refused = world.connect(0, "reader")
    assert refused.reason == Reason.USE_ANOTHER_SERVER
    _, answer = world.connect(1, "reader")
    assert answer.session_present
    assert not world.ready(0)
    world.ask(1, "/v1/nodes/n0/drain", {"drain": False})
    wait_until(lambda: world.ready(0))


def test_a_node_that_was_told_to_stop_is_not_ready_while_it_still_serves(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    own = {0: {"PENSTOCK_NODE__STOP_DELAY_S": "60"}}
    with NodeWorld(kafka, postgres, tmp_path, 1, own=own) as world:
        assert world.ready(0)
        os.kill(world[0].pid, signal.SIGTERM)
        wait_until(lambda: not world.ready(0))
        late, answer = world.connect(0, "late", is_clean=True)
        assert answer.reason == Reason.SUCCESS
        late.publish("a/b", b"one", 1)
        world[0].stop()  # the second signal: at once, or this would take too long
        assert late.expect(Disconnect).reason == Reason.SERVER_SHUTTING_DOWN


def test_of_many_clients_that_fight_for_one_id_over_all_nodes_one_is_left(
    world: NodeWorld,
) -> None:
    fighters = [world.begin_connect(at % 2, "prize") for at in range(100)]
    wait_until(lambda: sum(not one.has_ended() for one in fighters) <= 1)
    (winner,) = [one for one in fighters if not one.has_ended()]
    wait_until(lambda: winner.has_ended() or winner.is_connected)
    winner.subscribe("a/#", qos=1)
    other, _ = world.connect(0, "other", is_clean=True, expiry_s=0)
    other.publish("a/b", b"one", 1)
    assert winner.receive().payload == b"one"


def test_a_retained_message_of_one_node_is_given_to_later_subscribers_of_all(
    world: NodeWorld,
) -> None:
    writer, _ = world.connect(0, "writer", is_clean=True, expiry_s=0)
    for number in range(5):
        writer.publish(f"state/{number}", b"old", 1, retain=True)
        writer.publish(f"state/{number}", str(number).encode(), 1, retain=True)
    writer.publish("state/0", b"", 1, retain=True)
    last, _ = world.connect(1, "last", is_clean=True, expiry_s=0)
    wait_until(lambda: sorted(world.retained(1)) == [f"state/{n}" for n in range(1, 5)])
    last.subscribe("state/#", qos=1)
    got = {}
    for _ in range(4):
        message = last.receive()
        got[message.name] = message.payload
        last.acknowledge(message)
    assert got == {f"state/{number}": str(number).encode() for number in range(1, 5)}


def test_commands_list_show_and_drain_nodes(
    world: NodeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--at", str(world[1].data)]
    assert main(["node", "list", *at]) == 0
    shown = capsys.readouterr().out
    assert "n0" in shown and "n1 (this one)" in shown
    assert main(["node", "drain", "n0", *at]) == 0
    assert "draining" in capsys.readouterr().out
    wait_until(lambda: not world.ready(0))
    assert main(["node", "drain", "n0", "--undo", *at]) == 0
    wait_until(lambda: world.ready(0))
    assert main(["node", "show", "n0", *at]) == 0
    assert "state: live" in capsys.readouterr().out
    assert main(["node", "show", "nobody", *at]) == 1
