"""Does what somebody began end at once when they are removed, or what they logged in with is?

Each kind of reader meets each way of losing its login; whoever did not lose theirs goes on.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.app.server import Server
from penstock.app.users import open_users
from penstock.broker.access import key_id_of
from penstock.core.access import parse_rule
from penstock.model.record import TenantId
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Connack, Connect, Will
from penstock.mqtt.reasons import Reason
from tests.access.readers import (
    READERS,
    TOPIC,
    Login,
    LongPoll,
    MqttReader,
    Open,
    SseReader,
    UsersWorld,
)
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Asking

every_reader = pytest.mark.parametrize("reader", READERS)


@every_reader
def test_removing_a_user_ends_what_it_began_however_it_logged_in(
    world: UsersWorld, reader: Open
) -> None:
    bob, carl = world.add_user(), world.add_user()
    by_password, by_key = world.read(reader, bob), world.read(reader, world.add_key(bob))
    other = world.read(reader, carl)
    assert world.ask("DELETE", f"/v1/users/{bob.user}") == 204
    for ended in (by_password, by_key):
        ended.check_ended(f"user '{bob.user}' was removed")
    world.check_going_on(other)


@every_reader
def test_revoking_a_key_ends_what_was_begun_with_it_and_nothing_else(
    world: UsersWorld, reader: Open
) -> None:
    bob = world.add_user()
    key = world.add_key(bob)
    by_key = world.read(reader, key)
    others = [world.read(reader, login) for login in (world.add_key(bob), bob)]
    assert world.ask("DELETE", f"/v1/keys/{key_id_of(key.secret)}") == 204
    by_key.check_ended("the key was revoked")
    world.check_going_on(*others)


@every_reader
def test_a_new_password_ends_what_was_begun_with_the_old_one_or_a_key(
    world: UsersWorld, reader: Open
) -> None:
    bob, carl = world.add_user(), world.add_user()
    by_password, by_key = world.read(reader, bob), world.read(reader, world.add_key(bob))
    other = world.read(reader, carl)
    assert world.ask("PUT", f"/v1/users/{bob.user}", {"password": "new"}) == 200
    by_password.check_ended(f"the password of user '{bob.user}' was changed")
    by_key.check_ended("the key was revoked")
    world.check_going_on(other)


@every_reader
def test_keys_that_are_kept_go_on_when_the_password_changes(
    world: UsersWorld, reader: Open
) -> None:
    bob = world.add_user()
    by_password, by_key = world.read(reader, bob), world.read(reader, world.add_key(bob))
    asked = {"password": "new", "keep_keys": True}
    assert world.ask("PUT", f"/v1/users/{bob.user}", asked) == 200
    by_password.check_ended("was changed")
    world.check_going_on(by_key)


def test_before_mqtt_5_the_connection_is_closed(world: UsersWorld) -> None:
    bob = world.add_user()
    with Wire(world.broker.port, "old", MQTT_3_1_1) as wire:
        wire.send(
            Connect("old", username=bob.user, password=bob.secret.encode(), version=MQTT_3_1_1)
        )
        assert wire.expect(Connack).reason == Reason.SUCCESS
        assert world.ask("DELETE", f"/v1/users/{bob.user}") == 204
        assert wire.is_closed()


def test_a_user_of_the_same_name_does_not_keep_what_the_old_one_began(world: UsersWorld) -> None:
    bob = world.add_user()
    old = world.read(MqttReader, bob)
    assert world.ask("DELETE", f"/v1/users/{bob.user}") == 204
    assert world.ask("PUT", f"/v1/users/{bob.user}", {"password": bob.secret}) == 201
    old.check_ended("was removed")
    world.check_going_on(world.read(MqttReader, bob))


@pytest.mark.parametrize("reader", [MqttReader, SseReader, LongPoll])
def test_the_first_user_ends_what_clients_without_a_login_began(
    tmp_path: Path, reader: Open
) -> None:
    with Hosted(tmp_path) as broker:
        world = UsersWorld(broker)  # the name counts for nothing while nobody can log in
        before = world.read(reader, world.admin)
        assert world.ask("PUT", f"/v1/users/{world.admin.user}", {"password": "wonder"}) == 201
        before.check_ended("every client has to log in now")
        world.check_going_on(world.read(reader, world.admin))
        world.close()


@pytest.mark.parametrize("reader", [MqttReader, SseReader])
def test_a_removed_user_of_one_tenant_leaves_those_of_the_same_name_in_others(
    tmp_path: Path, reader: Open
) -> None:
    add_users(tmp_path, alice="wonder", bob="secret")
    with Hosted(tmp_path) as broker:
        world = UsersWorld(broker)

        async def add_tenant(server: Server) -> None:
            await server.broker.tenants.add("acme", "Wile E.", "Coyote", "c@acme.example")
            await world.access.add_user("bob", b"secret", tenant=TenantId("acme"))

        broker.run(add_tenant)
        here, there = Login("bob", "secret"), Login("acme/bob", "secret")
        with Asking(broker.ports["http"]) as client:
            assert client.ask("PUT", TOPIC, {}, Authorization=there.header).status == 201
            mine, other = world.read(reader, here), world.read(reader, there)
            assert world.ask("DELETE", "/v1/users/bob") == 204
            mine.check_ended("user 'bob' was removed")
            body = {"payload": "still here"}
            client.ask("POST", f"{TOPIC}/records", body, Authorization=there.header)
            assert other.take() == "still here"
        world.close()


def mortal(broker: Hosted, login: Login, client_id: str = "mortal") -> Wire:
    """A client with a will."""
    wire = Wire(broker.port, client_id, MQTT_5)
    will = Will("live", b"farewell")
    password = login.secret.encode()
    wire.send(Connect(client_id, will=will, username=login.user, password=password))
    assert wire.expect(Connack).reason == Reason.SUCCESS
    return wire


@pytest.mark.parametrize("way", ["key revoked", "password changed", "removed", "created anew"])
def test_the_will_of_a_login_that_is_no_longer_good_is_not_published(
    world: UsersWorld, way: str
) -> None:
    bob, carl = world.add_user(), world.add_user()
    other = world.read(MqttReader, carl)
    login = world.add_key(bob) if way == "key revoked" else bob
    wire = mortal(world.broker, login)
    dropped = world.broker.dropped["not_authorized"]
    if way == "key revoked":
        assert world.ask("DELETE", f"/v1/keys/{key_id_of(login.secret)}") == 204
    elif way == "password changed":
        assert world.ask("PUT", f"/v1/users/{bob.user}", {"password": "another one"}) == 200
    else:
        assert world.ask("DELETE", f"/v1/users/{bob.user}") == 204
        if way == "created anew":
            world.broker.run(lambda server: world.access.add_user(bob.user, b"x", ["admin"]))
    wire.close()
    world.broker.wait_idle()
    world.check_going_on(other)
    assert world.broker.dropped["not_authorized"] == dropped + 1


@pytest.mark.parametrize("way", ["key revoked", "password changed", "removed", "created anew"])
def test_nor_is_it_after_a_restart(tmp_path: Path, way: str, runner: asyncio.Runner) -> None:
    add_users(tmp_path, alice="wonder", bob="builder", carl="c")
    login, good = Login("bob", "builder"), Login("carl", "c")
    with Hosted(tmp_path) as broker:
        access = broker.exchange.engine.access
        if way == "key revoked":
            key = broker.run(lambda server: access.make_key("bob"))
            login = Login("key", key)
        wires = [mortal(broker, login), mortal(broker, good, "other")]
    for wire in wires:
        wire.close()

    async def change() -> None:
        async with open_users(tmp_path) as access:
            if way == "key revoked":
                await access.revoke_key(key_id_of(login.secret))
            elif way == "password changed":
                await access.set_password("bob", b"another")
            else:
                await access.remove_user("bob")
            if way == "created anew":
                await access.add_user("bob", b"builder", ["admin"])

    runner.run(change())
    with (
        Hosted(tmp_path, mqtt__will_grace_s=0) as broker,
        Wire(broker.port, "heir", MQTT_5) as heir,
    ):
        heir.send(Connect("heir", username="alice", password=b"wonder"))
        heir.expect(Connack)
        broker.wait_idle()
        heir.subscribe_feed("live", from_="earliest")
        assert heir.receive().payload == b"farewell", "carl's"
        assert heir.settle() == []
        assert broker.dropped["not_authorized"] == 1


def test_the_will_of_a_key_is_judged_by_what_the_key_may(world: UsersWorld) -> None:
    admin = world.add_user()
    world.set_roles(admin, "admin")
    other = world.read(MqttReader, world.add_user())
    access, broker = world.access, world.broker
    rule = parse_rule("allow publish live")
    broker.run(lambda server: access.roles.add("herald", [rule]))
    key = broker.run(lambda server: access.make_key(admin.user, ["herald"]))
    mortal(broker, Login("key", key)).close()
    assert other.take() == "farewell"
    wire = mortal(broker, Login("key", key))
    broker.run(lambda server: access.roles.replace("herald", []))
    wire.close()
    broker.wait_idle()
    world.check_going_on(other)
    broker.run(lambda server: access.roles.remove("herald"))
