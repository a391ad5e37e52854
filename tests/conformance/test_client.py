"""`penstock pub` and `penstock sub`: do our own clients keep the rules that bind clients?"""

from __future__ import annotations

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.conformance.peer import Peer, pub, sub
from tests.conformance.talk import BOTH


def subscribed(*arguments: str, version: int = MQTT_5, **said: int) -> Peer:
    """A `penstock sub` that has what it asked for."""
    peer = sub("-t", "a/#", "-q", "2", *arguments, version=version)
    peer.welcome(Properties(**said))
    request = peer.expect(Subscribe)
    peer.send(Suback(request.packet_id, (Reason.GRANTED_QOS_2,)))
    return peer


@BOTH
def test_first_packet_of_a_client_is_connect(version: int) -> None:
    """Does it say CONNECT, and nothing behind it before it was let in?"""
    with pub("-t", "a", "-m", "x", version=version) as peer:
        assert isinstance(peer.next(), Connect)
        assert peer.is_silent()
        peer.send(Connack())
        assert peer.expect(Publish).payload == b"x"


@BOTH
def test_client_pings_when_it_has_nothing_else_to_say(version: int) -> None:
    """Does it send PINGREQ within its keep alive, again and again?"""
    with subscribed("-k", "1", version=version) as peer:
        for _ in range(2):
            peer.expect(Pingreq)
            peer.send(Pingresp())


def test_client_takes_the_keep_alive_of_the_server() -> None:
    """Does a client that asked for a minute ping within the second it was given?"""
    with subscribed("-k", "60", server_keep_alive=1) as peer:
        peer.expect(Pingreq)


@BOTH
def test_client_takes_leave_and_closes(version: int) -> None:
    """Is DISCONNECT its last packet, and the connection closed behind it?"""
    with pub("-t", "a", "-m", "x", version=version) as peer:
        peer.welcome()
        peer.expect(Publish)
        assert isinstance(peer.next(), Disconnect)
        assert peer.is_closed()
        assert peer.command.result() == 0


@BOTH
def test_ids_of_a_client_are_fresh(version: int) -> None:
    """Are the ids of messages on their way different and not zero, and free once answered?"""
    with pub("-t", "a", "-m", "x", "-q", "1", "--repeat", "130", version=version) as peer:
        peer.welcome()
        out = [peer.expect(Publish).packet_id for _ in range(100)]  # as many as it sends at once
        assert 0 not in out and len(set(out)) == 100
        for _ in range(30):
            peer.send(Puback(out.pop(50)))
            fresh = peer.expect(Publish).packet_id
            assert fresh and fresh not in out
            out.append(fresh)
        peer.send(*[Puback(packet_id) for packet_id in out])
        peer.expect(Disconnect)


@BOTH
def test_client_acknowledges_in_the_order_of_arrival(version: int) -> None:
    """Do PUBACKs come in the order of their messages, and PUBRECs in the order of theirs?"""
    with subscribed("-C", "8", version=version) as peer:
        ids = (5, 3, 9, 1, 8, 2, 7, 4)
        peer.send(*[Publish("a/b", b"x", 1 + at % 2, packet_id=one) for at, one in enumerate(ids)])
        answers = [peer.next() for _ in ids]
        assert answers == [Pubrec(one) if at % 2 else Puback(one) for at, one in enumerate(ids)]


@BOTH
def test_client_releases_in_the_order_of_what_was_received(version: int) -> None:
    """Do PUBRELs come in the order of the PUBRECs, whatever the order of the messages was?"""
    with pub("-t", "a", "-m", "x", "-q", "2", "--repeat", "5", version=version) as peer:
        peer.welcome()
        ids = [peer.expect(Publish).packet_id for _ in range(5)]
        order = [ids[at] for at in (3, 0, 4, 1, 2)]
        peer.send(*[Pubrec(packet_id) for packet_id in order])
        assert [peer.expect(Pubrel).packet_id for _ in range(5)] == order
        peer.send(*[Pubcomp(packet_id) for packet_id in order])
        peer.expect(Disconnect)


@BOTH
def test_client_acknowledges_what_it_does_not_show(version: int) -> None:
    """Is a retained message that `--no-stale` leaves out acknowledged all the same?"""
    with subscribed("--no-stale", "-C", "1", version=version) as peer:
        peer.send(Publish("a/b", b"old", 1, True, packet_id=7))
        assert peer.expect(Puback).packet_id == 7
        peer.send(Publish("a/b", b"old", 2, True, packet_id=8))
        assert peer.expect(Pubrec).packet_id == 8
        peer.send(Pubrel(8))
        assert peer.expect(Pubcomp).packet_id == 8


@BOTH
def test_qos_2_message_is_shown_once(version: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Is a repeat before its PUBREL answered and not shown, and new after it?"""
    with subscribed("-C", "2", version=version) as peer:
        for dup in (False, True, True):
            peer.send(Publish("a/b", b"once", 2, dup=dup, packet_id=8))
            assert peer.expect(Pubrec).packet_id == 8
        peer.send(Pubrel(8))
        assert peer.expect(Pubcomp).packet_id == 8
        peer.send(Publish("a/b", b"again", 2, packet_id=8))
        assert peer.expect(Pubrec).packet_id == 8
        assert peer.command.result() == 0
    assert capfd.readouterr().out == "once\nagain\n"


# MQTT 5


def test_client_sends_no_more_than_the_receive_maximum() -> None:
    """Are no more messages on their way than the server takes, until it is done with one?"""
    with pub("-t", "a", "-m", "x", "-q", "2", "--repeat", "4") as peer:
        peer.welcome(Properties(receive_maximum=2))
        first, second = peer.expect(Publish), peer.expect(Publish)
        assert peer.is_silent()
        peer.send(Pubrec(first.packet_id))
        assert peer.expect(Pubrel).packet_id == first.packet_id
        assert peer.is_silent()  # PUBREC alone makes no room
        peer.send(Pubcomp(first.packet_id))
        peer.expect(Publish)
        peer.send(Pubrec(second.packet_id, Reason.QUOTA_EXCEEDED))
        peer.expect(Publish)


def test_client_pings_while_it_may_send_no_message() -> None:
    """Are packets other than PUBLISH not held up by a quota that is used up?"""
    with pub("-t", "a", "-m", "x", "-q", "1", "--repeat", "2", "-k", "1", "--no-reconnect") as peer:
        peer.welcome(Properties(receive_maximum=1))
        peer.expect(Publish)
        peer.expect(Pingreq)


def test_client_keeps_to_the_maximum_qos(capfd: pytest.CaptureFixture[str]) -> None:
    """Is a message at a higher QoS than the server takes refused here, and not sent?"""
    with pub("-t", "a", "-m", "x", "-q", "2") as peer:
        peer.welcome(Properties(maximum_qos=1))
        assert peer.is_closed()
        assert peer.command.result() == 1
    assert "QoS 2 is higher than the server allows (QoS 1)" in capfd.readouterr().err


def test_client_retains_nothing_where_it_cannot_be(capfd: pytest.CaptureFixture[str]) -> None:
    """Is a retained message refused here if the server keeps none?"""
    with pub("-t", "a", "-m", "x", "-r") as peer:
        peer.welcome(Properties(retain_available=0))
        assert peer.is_closed()
        assert peer.command.result() == 1
    assert "the server does not support retained messages" in capfd.readouterr().err


def test_client_keeps_to_the_maximum_packet_size(capfd: pytest.CaptureFixture[str]) -> None:
    """Is a message refused here that is one byte too large, and one that fits sent?"""
    fits = 100 - len(b"\x30\x62\x00\x01a\x00")
    with pub("-t", "a", "-m", "x" * fits) as peer:
        peer.welcome(Properties(maximum_packet_size=100))
        assert len(peer.expect(Publish).payload) == fits
    with pub("-t", "a", "-m", "x" * (fits + 1)) as peer:
        peer.welcome(Properties(maximum_packet_size=100))
        assert peer.is_closed()
        assert peer.command.result() == 1
    assert "a packet of 101 bytes is larger than the server allows" in capfd.readouterr().err


@pytest.mark.parametrize("most", [None, 0, 3])
def test_client_keeps_to_the_topic_alias_maximum(
    most: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Is an alias beyond what the server takes refused here, and any at all if it takes none?"""
    with pub("-t", "a", "-m", "x", "-D", "publish", "topic-alias", "4") as peer:
        peer.welcome(Properties(topic_alias_maximum=most))
        assert peer.is_closed()
        assert peer.command.result() == 1
    assert "topic alias 4 is higher than the server allows" in capfd.readouterr().err


def test_client_understands_every_alias_it_allowed(capfd: pytest.CaptureFixture[str]) -> None:
    """Are all aliases up to its own maximum taken, replaced when named again, and no others?"""
    flags = ("-v", "-D", "connect", "topic-alias-maximum", "3")
    with subscribed(*flags) as peer:
        for alias, name in ((1, "a/1"), (3, "a/3"), (1, ""), (3, ""), (1, "a/new"), (1, "")):
            peer.send(Publish(name, b"x", properties=Properties(topic_alias=alias)))
        peer.send(Publish("a/4", b"x", properties=Properties(topic_alias=4)))
        assert peer.expect(Disconnect).reason == Reason.TOPIC_ALIAS_INVALID
        assert peer.is_closed()
    shown = capfd.readouterr().out.splitlines()
    assert shown == ["a/1 x", "a/3 x", "a/1 x", "a/3 x", "a/new x", "a/new x"]


def test_client_that_began_anew_does_not_take_an_old_session() -> None:
    """Is a CONNACK with a session present, after a clean start, the end of the connection?"""
    with sub("-t", "a") as peer:
        peer.welcome(is_present=True)
        assert peer.is_closed()
        assert peer.command.result() == 1


def test_client_whose_session_is_gone_begins_anew() -> None:
    """Does a client that wanted its session back subscribe again, where there is none?"""
    with sub("-t", "a", "-c", "-i", "me") as peer:
        assert not peer.welcome().clean_start
        assert [one.filter for one in peer.expect(Subscribe).subscriptions] == ["a"]


def test_client_with_a_method_says_nothing_before_it_is_let_in() -> None:
    """Is CONNECT all it sends, and does it leave where the server wants to go on with AUTH?"""
    method = Properties(authentication_method="SCRAM")
    with sub("-t", "a", "-D", "connect", "authentication-method", "SCRAM") as peer:
        assert peer.expect(Connect).properties == method
        assert peer.is_silent()
        peer.send(Auth(Reason.CONTINUE_AUTHENTICATION, method))
        assert peer.expect(Disconnect).reason == Reason.PROTOCOL_ERROR
        assert peer.is_closed()
        assert peer.command.result() == 1
