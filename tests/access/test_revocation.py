"""Does what somebody began end at once when they are removed, or what they logged in with is?

Each kind of reader meets each way of losing its login; whoever did not lose theirs goes on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.app.server import Server
from penstock.broker.access import key_id_of
from penstock.model.record import TenantId
from penstock.mqtt.kinds import MQTT_3_1_1
from penstock.mqtt.packets import Connack, Connect
from penstock.mqtt.reasons import Reason
from tests.access.readers import (
    READERS,
    TOPIC,
    Login,
    LongPoll,
    MqttReader,
    Open,
    SseReader,
    World,
)
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Asking

every_reader = pytest.mark.parametrize("reader", READERS)


@every_reader
def test_removing_a_user_ends_what_it_began_however_it_logged_in(
    world: World, reader: Open
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
    world: World, reader: Open
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
    world: World, reader: Open
) -> None:
    bob, carl = world.add_user(), world.add_user()
    by_password, by_key = world.read(reader, bob), world.read(reader, world.add_key(bob))
    other = world.read(reader, carl)
    assert world.ask("PUT", f"/v1/users/{bob.user}", {"password": "new"}) == 200
    by_password.check_ended(f"the password of user '{bob.user}' was changed")
    by_key.check_ended("the key was revoked")
    world.check_going_on(other)


@every_reader
def test_keys_that_are_kept_go_on_when_the_password_changes(world: World, reader: Open) -> None:
    bob = world.add_user()
    by_password, by_key = world.read(reader, bob), world.read(reader, world.add_key(bob))
    asked = {"password": "new", "keep_keys": True}
    assert world.ask("PUT", f"/v1/users/{bob.user}", asked) == 200
    by_password.check_ended("was changed")
    world.check_going_on(by_key)


def test_before_mqtt_5_the_connection_is_closed(world: World) -> None:
    bob = world.add_user()
    with Wire(world.broker.port, "old", MQTT_3_1_1) as wire:
        wire.send(
            Connect("old", username=bob.user, password=bob.secret.encode(), version=MQTT_3_1_1)
        )
        assert wire.expect(Connack).reason == Reason.SUCCESS
        assert world.ask("DELETE", f"/v1/users/{bob.user}") == 204
        assert wire.is_closed()


def test_a_user_of_the_same_name_does_not_keep_what_the_old_one_began(world: World) -> None:
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
        world = World(broker)  # the name counts for nothing while nobody can log in
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
        world = World(broker)

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
