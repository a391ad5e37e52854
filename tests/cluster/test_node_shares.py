"""Does a share whose members are on several nodes give each message to one of them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from zlib import crc32

import pytest

from penstock.mqtt.packets import (
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from penstock.mqtt.reasons import Reason
from tests.cluster.node_world import NodeWorld
from tests.doors.wire import Wire
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until

PARTS = 4


@pytest.fixture(scope="module")
def world(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeWorld]:
    with NodeWorld(kafka, postgres, tmp_path_factory.mktemp("nodes"), 2, PARTS) as made:
        yield made


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a share and of its messages: the tests have one world."""
    return f"t{crc32(request.node.name.encode())}"


class Member:
    """A client that keeps what it is sent, as a client of QoS 2 does."""

    def __init__(self, world: NodeWorld, at: int, client_id: str, *, is_new: bool = True) -> None:
        self.got: list[bytes] = []
        self.is_answering = True
        self.client_id = client_id
        self._world = world
        self._unreleased: set[int] = set()
        self.wire = self._connect(at, is_new=is_new)

    def _connect(self, at: int, *, is_new: bool) -> Wire:
        wire, answer = self._world.connect(at, self.client_id, is_clean=is_new)
        assert answer.session_present is not is_new
        return wire

    def share(self, name: str, qos: int) -> Member:
        assert self.wire.subscribe(f"$share/g/{name}/#", qos=qos).reasons == (Reason(qos),)
        return self

    def move(self, at: int) -> None:
        self.wire = self._connect(at, is_new=False)

    def take(self) -> None:
        """What is there now."""
        while (packet := self.wire.poll(0.005)) is not None:
            self._take(packet)

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, Pubrel):
            self._unreleased.discard(packet.packet_id)
            self.wire.send(Pubcomp(packet.packet_id))
            return
        assert isinstance(packet, Publish), packet
        if packet.packet_id not in self._unreleased:
            self.got.append(packet.payload)
        if packet.qos == 2:
            self._unreleased.add(packet.packet_id)
        if self.is_answering and packet.qos:
            answer = Puback if packet.qos == 1 else Pubrec
            self.wire.send(answer(packet.packet_id))


def collect(members: list[Member], is_enough: Callable[[Counter[bytes]], object]) -> Counter[bytes]:
    """How often each message came, once that is enough."""

    def got() -> Counter[bytes]:
        for member in members:
            member.take()
        return Counter(payload for member in members for payload in member.got)

    wait_until(lambda: is_enough(got()))
    return got()


def publish(world: NodeWorld, at: int, name: str, numbers: range, qos: int = 1) -> set[bytes]:
    """Each number under a name of its own, so that all partitions get some."""
    writer, _ = world.connect(at, f"writer-{name}-{numbers.start}", is_clean=True, expiry_s=0)
    for number in numbers:
        writer.publish(f"{name}/{number}", b"%d" % number, qos)
    writer.close()
    return {b"%d" % number for number in numbers}


def owners(world: NodeWorld, name: str) -> Counter[int]:
    """How many parts of a share each incarnation has; 0: nobody."""
    rows = world.sql(
        "select coalesce(p.owner_inc, 0), count(*) from {0}.share_parts p"
        " join {0}.shares s using (tenant, share_id) where s.filter = $1 group by 1",
        f"$share/g/{name}/#",
    )
    return Counter(dict(rows))


def saved(world: NodeWorld, name: str) -> int:
    """How many messages that are out at QoS 1 a checkpoint has saved."""
    ((count,),) = world.sql(
        "select count(*) from {0}.share_outstanding o"
        " join {0}.shares s using (tenant, share_id) where s.filter = $1 and o.qos = 1",
        f"$share/g/{name}/#",
    )
    return int(count)


def is_even(world: NodeWorld, name: str) -> bool:
    counts = owners(world, name)
    return 0 not in counts and len(counts) == 2 and max(counts.values()) - min(counts.values()) <= 1


def close(*members: Member) -> None:
    for member in members:
        member.wire.close()


def test_clients_of_nodes_hear_that_there_are_shared_subscriptions(world: NodeWorld) -> None:
    _, answer = world.connect(0, "asker", is_clean=True, expiry_s=0)
    assert answer.properties.shared_subscription_available == 1


def test_members_on_one_node_get_every_message_once(world: NodeWorld, name: str) -> None:
    members = [Member(world, 0, f"{name}-{at}").share(name, 1) for at in range(2)]
    sent = publish(world, 1, name, range(40))
    assert collect(members, lambda got: set(got) == sent) == Counter(sent)
    assert all(member.got for member in members)
    close(*members)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_on_any_node(world: NodeWorld, name: str, qos: int) -> None:
    members = [Member(world, at % 2, f"{name}-{at}").share(name, qos) for at in range(4)]
    wait_until(lambda: is_even(world, name))
    sent = publish(world, 0, name, range(80), qos)
    assert collect(members, lambda got: set(got) == sent) == Counter(sent)
    assert all(member.got for member in members), "every node has parts, and deals them out"
    close(*members)


def test_parts_go_to_a_node_that_gets_its_first_member_and_nothing_is_lost_or_repeated(
    world: NodeWorld, name: str
) -> None:
    members = [Member(world, 0, f"{name}-0").share(name, 1)]
    sent = publish(world, 0, name, range(20))
    members.append(Member(world, 1, f"{name}-1").share(name, 1))
    sent |= publish(world, 0, name, range(20, 40))
    collect(members, lambda _: is_even(world, name))
    sent |= publish(world, 1, name, range(40, 80))
    assert collect(members, lambda got: set(got) == sent) == Counter(sent)
    assert all(member.got for member in members)
    close(*members)


def test_when_the_last_member_of_a_node_leaves_others_get_what_it_left(
    world: NodeWorld, name: str
) -> None:
    members = [Member(world, at, f"{name}-{at}").share(name, 1) for at in range(2)]
    wait_until(lambda: is_even(world, name))
    members[0].is_answering = False
    sent = publish(world, 0, name, range(40))
    collect(members, lambda got: set(got) == sent)
    left = set(members[0].got)
    assert left, "what it did not answer"
    members[0].wire.disconnect()
    collect(members[1:], lambda got: set(got) == sent)
    assert Counter(members[1].got) == Counter(sent)
    close(*members)


def test_what_is_published_while_all_members_are_away_waits_for_the_first_to_return(
    world: NodeWorld, name: str
) -> None:
    member = Member(world, 0, f"{name}-0").share(name, 1)
    member.wire.disconnect()
    sent = publish(world, 0, name, range(30))
    member.move(1)
    assert collect([member], lambda got: set(got) == sent) == Counter(sent)
    close(member)


def test_a_message_of_qos_2_goes_on_at_the_node_that_its_session_moves_to(
    world: NodeWorld, name: str
) -> None:
    mover = Member(world, 0, f"{name}-0").share(name, 2)
    mover.is_answering = False
    sent = publish(world, 0, name, range(10), 2)
    collect([mover], lambda got: set(got) == sent)
    mover.move(1)
    other = Member(world, 0, f"{name}-1").share(name, 2)
    mover.is_answering = True
    more = publish(world, 0, name, range(10, 40), 2)
    got = collect([mover, other], lambda got: sent | more <= set(got))
    assert got == Counter(sent | more)
    assert not sent & set(other.got)
    close(mover, other)


def test_what_members_of_a_killed_node_had_not_answered_is_given_to_others(
    world: NodeWorld, name: str
) -> None:
    members = [Member(world, at, f"{name}-{at}").share(name, 1) for at in range(2)]
    wait_until(lambda: is_even(world, name))
    members[0].is_answering = False
    sent = publish(world, 1, name, range(40))
    collect(members, lambda got: set(got) == sent)
    wait_until(lambda: saved(world, name) == len(members[0].got) > 0)
    world[0].kill()
    sent |= publish(world, 1, name, range(40, 60))
    collect(members[1:], lambda got: set(got) == sent)
    world[0].start()
    close(*members)


def test_qos_2_of_a_killed_node_waits_for_its_session_and_comes_once(
    world: NodeWorld, name: str
) -> None:
    members = [Member(world, at, f"{name}-{at}").share(name, 2) for at in range(2)]
    wait_until(lambda: is_even(world, name))
    members[0].is_answering = False
    sent = publish(world, 1, name, range(40), 2)
    collect(members, lambda got: set(got) == sent)
    out = set(members[0].got)
    assert out
    world[0].kill()
    members[0].move(1)
    members[0].is_answering = True
    sent |= publish(world, 1, name, range(40, 60), 2)
    got = collect(members, lambda got: set(got) == sent)
    assert got == Counter(sent)
    assert not out & set(members[1].got)
    world[0].start()
    close(*members)


def test_what_was_out_at_qos_2_is_counted_while_its_session_is_away(
    world: NodeWorld, name: str
) -> None:
    member = Member(world, 0, name).share(name, 2)
    member.is_answering = False
    sent = publish(world, 1, name, range(3), 2)
    collect([member], lambda got: set(got) == sent)
    member.wire.disconnect()
    wait_until(lambda: not world.ask(0, f"/v1/sessions/{name}")["is_connected"])
    assert [world.ask(at, f"/v1/sessions/{name}")["outstanding"] for at in range(2)] == [3, 3]


def test_parts_of_a_drained_node_go_to_the_others(world: NodeWorld, name: str) -> None:
    members = [Member(world, at, f"{name}-{at}").share(name, 1) for at in range(2)]
    wait_until(lambda: is_even(world, name))
    world.ask(1, "/v1/nodes/n0/drain", {})
    assert members[0].wire.expect(Disconnect).reason == Reason.USE_ANOTHER_SERVER
    sent = publish(world, 1, name, range(40))
    assert collect(members[1:], lambda got: set(got) == sent) == Counter(sent)
    members[0].move(1)
    world.ask(1, "/v1/nodes/n0/drain", {"drain": False})
    wait_until(lambda: world.ready(0))
    close(*members)


def test_a_share_that_nobody_holds_any_more_is_forgotten(world: NodeWorld, name: str) -> None:
    for at in range(2):
        member = Member(world, at, f"{name}-{at}").share(name, 1)
        sent = publish(world, 0, name, range(at * 5, at * 5 + 5))
        assert collect([member], lambda got, sent=sent: set(got) == sent) == Counter(sent)
        world.connect(at, member.client_id, is_clean=True, expiry_s=0)[0].disconnect()
    wait_until(lambda: owners(world, name)[0] == owners(world, name).total())
