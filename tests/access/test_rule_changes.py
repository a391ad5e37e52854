"""Do changes of rules and roles hold at once for who is connected, and leave the others alone?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.app.server import Server
from penstock.broker.access.identities import CERTIFICATE, Identity
from penstock.broker.access.renewal import SLICE
from penstock.core.access import authorise, parse_rule
from penstock.model.record import DEFAULT_TENANT
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect, Publish, Will
from penstock.mqtt.reasons import Reason
from tests.access.readers import (
    FeedReader,
    FramedMqttReader,
    Login,
    LongPoll,
    MqttReader,
    Open,
    SocketReader,
    SseReader,
    UsersWorld,
)
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, kept

Undo = Callable[[], None]


def deny_name(world: UsersWorld, login: Login) -> Undo:
    rule_id = world.add_rule("deny receive,read live", login)
    return lambda: world.remove_rule(rule_id)


def deny_filter(world: UsersWorld, login: Login) -> Undo:
    rule_id = world.add_rule("deny subscribe,read live", login)
    return lambda: world.remove_rule(rule_id)


def take_roles(world: UsersWorld, login: Login) -> Undo:
    world.set_roles(login)
    return lambda: world.set_roles(login, "client")


def connect(world: UsersWorld, login: Login, will: Will | None = None) -> Wire:
    wire = Wire(world.broker.port, login.user, MQTT_5)
    wire.send(
        Connect(
            login.user,
            False,
            will=will,
            username=login.user,
            password=login.secret.encode(),
            properties=kept(),
        )
    )
    assert wire.expect(Connack).reason == Reason.SUCCESS
    return wire


@pytest.mark.parametrize("change", [deny_name, deny_filter, take_roles])
@pytest.mark.parametrize(
    "reader", [MqttReader, FramedMqttReader, FeedReader, SseReader, SocketReader, LongPoll]
)
def test_a_reader_stops_receiving_while_it_may_not_and_the_others_go_on(
    world: UsersWorld, reader: Open, change: Callable[[UsersWorld, Login], Undo]
) -> None:
    bob, carl = world.add_user(), world.add_user()
    denied, other = world.read(reader, bob), world.read(reader, carl)
    undo = change(world, bob)
    sent = world.publish()
    assert other.take() == sent
    undo()
    sent = world.publish()
    assert denied.take() == sent  # and not what came before


@pytest.mark.parametrize("change", [deny_name, deny_filter, take_roles])
def test_messages_of_a_share_go_to_the_members_that_may_have_them(
    world: UsersWorld, change: Callable[[UsersWorld, Login], Undo]
) -> None:
    bob, carl = world.add_user(), world.add_user()
    denied, other = connect(world, bob), connect(world, carl)
    for wire in (denied, other):
        wire.subscribe(f"$share/{bob.user}/live", qos=1)
    change(world, bob)
    sent = [world.publish() for _ in range(4)]
    assert [other.receive().payload.decode() for _ in sent] == sent
    assert denied.settle() == []
    for wire in (denied, other):
        wire.disconnect()


@pytest.mark.parametrize("change", [deny_name, deny_filter, take_roles])
def test_a_session_does_not_catch_up_with_what_it_may_no_longer_receive(
    world: UsersWorld, change: Callable[[UsersWorld, Login], Undo]
) -> None:
    bob = world.add_user()
    wire = connect(world, bob)
    wire.subscribe("live", qos=1)
    wire.disconnect()
    world.publish()
    change(world, bob)
    wire = connect(world, bob)
    assert wire.settle() == []
    wire.disconnect()


def test_a_will_that_may_no_longer_be_published_is_not(world: UsersWorld) -> None:
    bob, carl = world.add_user(), world.add_user()
    other = world.read(MqttReader, carl)
    wire = connect(world, bob, Will("live", b"gone"))
    world.add_rule("deny publish live", bob)
    wire.close()
    world.broker.wait_idle()
    world.check_going_on(other)


@pytest.mark.parametrize("change", [deny_name, take_roles])
def test_what_is_retained_is_not_handed_out_any_more(
    world: UsersWorld, change: Callable[[UsersWorld, Login], Undo]
) -> None:
    bob = world.add_user()
    alice = connect(world, world.admin)
    alice.publish("live", b"kept", 1, retain=True)
    wire = connect(world, bob)
    wire.subscribe("live")
    assert wire.expect(Publish).payload == b"kept"
    change(world, bob)
    wire.subscribe("live")
    assert wire.settle() == []
    alice.publish("live", b"", 1, retain=True)
    for one in (alice, wire):
        one.disconnect()


def test_a_rule_for_everybody_leaves_the_loop_to_others_while_it_reaches_thousands(
    tmp_path: Path,
) -> None:
    count = 9_000
    turns = 0

    async def change(server: Server) -> list[bool]:
        nonlocal turns
        access = broker.exchange.engine.access
        known = [
            access.get(Identity(DEFAULT_TENANT, f"user{n}", CERTIFICATE, credential=str(n)))
            for n in range(count)
        ]

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        await access.roles.add_rules([parse_rule("deny receive hr/#")])
        counting.cancel()
        return [authorise(one, "receive", "hr/pay", "hr") for one in known]

    with Hosted(tmp_path) as broker:
        allowed = broker.run(change)
    assert not any(allowed), "what is awaited has reached everybody"
    assert turns >= count // SLICE
