"""Does MQTT let everybody do what the rules allow, and nothing else? With cases known from CVEs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.core.access import parse_rule
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Connack, Connect, Puback, Publish, Will
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire

RULES = (
    "allow publish,subscribe,receive %u/#",
    "allow subscribe,receive shared/#",
    "allow publish,subscribe,receive of/%c/#",
    "deny receive shared/secret/#",
    "deny subscribe shared/secret/#",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """alice is admin; bob and carl have the same rules."""
    data = tmp_path_factory.mktemp("data")
    add_users(data, alice="alice", bob="bob", carl="carl")
    with Hosted(data) as hosted:
        access = hosted.exchange.engine.access
        rules = [parse_rule(rule) for rule in RULES]
        hosted.run(lambda server: access.roles.add("device", rules))
        for user in ("bob", "carl"):
            hosted.run(lambda server, user=user: access.set_roles(user, ["device"]))
        yield hosted


def connect(
    broker: Hosted, user: str | None, client_id: str, password: str | None = None, **more: object
) -> tuple[Wire, Connack]:
    wire = Wire(broker.port, client_id, MQTT_5)
    secret = (user or "") if password is None else password
    packet = Connect(
        client_id=client_id,
        version=MQTT_5,
        clean_start=True,
        username=user,
        password=secret.encode() if user is not None else None,
        **more,  # type: ignore[arg-type]
    )
    wire.send(packet)
    return wire, wire.expect(Connack)


def login(broker: Hosted, user: str, client_id: str, **more: object) -> Wire:
    wire, answer = connect(broker, user, client_id, **more)
    assert answer.reason == Reason.SUCCESS, answer
    return wire


def granted(wire: Wire, filter: str) -> bool:
    (reason,) = wire.subscribe(filter, qos=1).reasons
    assert reason < 0x80 or reason == Reason.NOT_AUTHORIZED
    return reason < 0x80


def received(wire: Wire) -> list[str]:
    return [packet.name for packet in wire.settle() if isinstance(packet, Publish)]


def is_published(wire: Wire, name: str) -> bool:
    packet_id = wire.take_id()
    wire.send(Publish(name, b"x", qos=1, packet_id=packet_id))
    reason = wire.pick(Puback, packet_id).reason
    assert reason in (Reason.SUCCESS, Reason.NO_MATCHING_SUBSCRIBERS, Reason.NOT_AUTHORIZED)
    return reason != Reason.NOT_AUTHORIZED


@pytest.mark.parametrize(
    ("filter", "is_granted"),
    [
        ("bob/#", True),
        ("bob/a", True),
        ("carl/#", False),
        ("#", False),
        ("+/#", False),
        ("shared/#", True),
        ("shared/secret/#", False),
        ("shared/secret/a", False),
        ("$share/g/shared/#", True),
        ("$share/g/shared/secret/#", False),
        ("$share/g/#", False),
        ("of/c1/#", True),
        ("of/+/#", False),
        ("of/c2/#", False),
    ],
)
def test_a_subscription_is_granted_if_a_rule_covers_it(
    broker: Hosted, filter: str, is_granted: bool
) -> None:
    with login(broker, "bob", "c1") as bob:
        assert granted(bob, filter) is is_granted


def test_a_publish_that_no_rule_allows_is_refused(broker: Hosted) -> None:
    with login(broker, "bob", "c1") as bob:
        assert is_published(bob, "bob/a") and is_published(bob, "of/c1/a")
        assert not is_published(bob, "carl/a") and not is_published(bob, "of/c2/a")
        assert not is_published(bob, "shared/a")


def test_a_denied_name_is_not_received_live_retained_shared_or_replayed(broker: Hosted) -> None:
    with login(broker, "alice", "a1") as alice:
        for name in ("shared/open/r", "shared/secret/r"):
            alice.publish(name, b"kept", 1, retain=True)
        with login(broker, "bob", "c1") as bob, login(broker, "carl", "c2") as carl:
            assert granted(bob, "shared/#") and granted(carl, "$share/g/shared/#")
            feed = login(broker, "bob", "c3")
            assert feed.subscribe_feed("shared/#", from_="earliest").reasons == (0,)
            for name in ("shared/secret/1", "shared/open/1"):
                alice.publish(name, b"x", 1)
            for reader in (bob, carl, feed):
                while "shared/open/1" not in (names := [reader.receive().name]):
                    assert "secret" not in names[0]
            feed.close()


def test_a_client_id_with_wildcards_matches_no_rule(broker: Hosted) -> None:
    for client_id in ("+", "#", "c1/x", "+/#"):
        with login(broker, "bob", client_id) as bob:
            if "#" not in client_id:
                assert not granted(bob, f"of/{client_id}/x")
            assert not granted(bob, "of/#") and not granted(bob, "of/+/x")
            assert not is_published(bob, "of/c1/a")


def test_a_will_to_a_forbidden_name_is_refused_when_it_is_registered(broker: Hosted) -> None:
    will = Will("carl/gone", b"x", 1, False)
    _, answer = connect(broker, "bob", "w1", will=will)
    assert answer.reason == Reason.NOT_AUTHORIZED


def test_a_will_that_became_forbidden_is_not_published(broker: Hosted) -> None:
    access = broker.exchange.engine.access
    with login(broker, "alice", "a2") as alice:
        assert granted(alice, "bob/#")
        wire = login(broker, "bob", "w2", will=Will("bob/gone", b"x", 1, False))
        rule = parse_rule("deny publish bob/gone")
        (added,) = broker.run(lambda server: access.roles.add_rules([rule]))
        wire.close()
        with login(broker, "bob", "w3", will=Will("bob/there", b"x", 1, False)) as other:
            other.send_bytes(b"\x00\x00")  # breaks the protocol: its will is published
            assert alice.receive().name == "bob/there"
        broker.run(lambda server: access.roles.remove_rule(added.rule_id))


def test_what_is_revoked_is_no_longer_received_while_the_others_go_on(broker: Hosted) -> None:
    access = broker.exchange.engine.access
    with (
        login(broker, "alice", "a3") as alice,
        login(broker, "carl", "c5") as carl,
        login(broker, "bob", "c4") as bob,
    ):
        assert granted(bob, "shared/#") and granted(carl, "shared/#")
        alice.publish("shared/x/1", b"x", 1, retain=True)
        assert received_until(bob, "shared/x/1") and received_until(carl, "shared/x/1")
        rule = parse_rule("deny receive shared/x/#")
        (added,) = broker.run(lambda server: access.roles.add_rules([rule], user="bob"))
        alice.publish("shared/x/2", b"x", 1)
        alice.publish("shared/y", b"x", 1)
        assert received_until(bob, "shared/y") == ["shared/y"]
        assert received_until(carl, "shared/y") == ["shared/x/2", "shared/y"]
        with login(broker, "bob", "c6") as again:  # nor the retained one
            assert granted(again, "shared/x/1") and received(again) == []
        broker.run(lambda server: access.roles.remove_rule(added.rule_id))
        alice.publish("shared/x/3", b"x", 1)
        assert received_until(bob, "shared/x/3") == ["shared/x/3"]


def received_until(wire: Wire, name: str) -> list[str]:
    names = [wire.receive().name]
    while names[-1] != name:
        names.append(wire.receive().name)
    return names


@pytest.mark.parametrize(
    ("user", "password"), [("bob", ""), ("", "bob"), ("", ""), (None, ""), ("Bob", "bob")]
)
def test_an_empty_password_or_no_user_does_not_log_in(
    broker: Hosted, user: str | None, password: str
) -> None:
    _, answer = connect(broker, user, "n1", password)
    assert answer.reason in (Reason.NOT_AUTHORIZED, Reason.BAD_USER_NAME_OR_PASSWORD)


def test_the_client_id_of_another_user_is_refused(broker: Hosted) -> None:
    with login(broker, "carl", "of-carl") as carl:
        _, answer = connect(broker, "bob", "of-carl")
        assert answer.reason != Reason.SUCCESS
        assert granted(carl, "carl/#")


def test_mqtt_3_1_1_is_told_0x80(broker: Hosted) -> None:
    with Wire(broker.port, "old", MQTT_3_1_1) as wire:
        wire.send(Connect(client_id="old", version=MQTT_3_1_1, username="bob", password=b"bob"))
        assert wire.expect(Connack).reason == 0
        assert wire.subscribe("carl/#").reasons == (0x80,)
