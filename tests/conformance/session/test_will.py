"""Wills: is one published exactly when it must be, as the message it was to be?"""

from __future__ import annotations

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Disconnect, Publish, Subscription, Will
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import Reason
from tests.conformance.talk import BOTH, Talk, join
from tests.doors.hosted import Hosted


def with_will(broker: Hosted, name: str, version: int, will: Will | None) -> Talk:
    talk = Talk(broker.port, name, version)
    assert talk.connect(will=will).reason == Reason.SUCCESS
    return talk


def nothing_comes(broker: Hosted, watcher: Talk) -> bool:
    broker.wait_idle()
    return watcher.settle() == []


@BOTH
def test_will_is_published_when_the_connection_breaks(
    broker: Hosted, name: str, version: int
) -> None:
    """Does it come at its own QoS when the client hangs up, breaks a rule or is taken over?"""
    with join(broker, name + "w", version) as watcher:
        watcher.subscribe(f"{name}/#", qos=2)
        for qos in range(3):
            will = Will(f"{name}/will", b"gone", qos)
            with_will(broker, name, version, will).close()
            assert _seen(watcher) == (f"{name}/will", b"gone", qos)
            with with_will(broker, name, version, will) as rude:
                rude.send_bytes(b"\x00\x00")
                assert _seen(watcher) == (f"{name}/will", b"gone", qos)
            with with_will(broker, name, version, will), join(broker, name, version) as newer:
                assert _seen(watcher) == (f"{name}/will", b"gone", qos)
                newer.disconnect()
        assert nothing_comes(broker, watcher)


def _seen(watcher: Talk) -> tuple[str, bytes, int]:
    message = watcher.receive()
    return message.name, message.payload, message.qos


@BOTH
def test_client_that_takes_leave_takes_its_will_along(
    broker: Hosted, name: str, version: int
) -> None:
    """Is nothing published after a DISCONNECT of 0x00?"""
    with join(broker, name + "w", version) as watcher:
        watcher.subscribe(name, qos=1)
        for retain in (False, True):
            with with_will(broker, name, version, Will(name, b"gone", 1, retain)) as client:
                client.send_bytes(b"\xe0\x00")
                assert client.ends_without_a_word()
        assert nothing_comes(broker, watcher)


def test_leave_with_another_reason_leaves_the_will(broker: Hosted, name: str) -> None:
    """Does an MQTT 5 client that says 0x04, or that something is wrong, have it published?"""
    with join(broker, name + "w") as watcher:
        watcher.subscribe(name, qos=1)
        for reason in (Reason.DISCONNECT_WITH_WILL, Reason.QUOTA_EXCEEDED):
            with with_will(broker, name, MQTT_5, Will(name, b"gone", 1)) as client:
                client.send(Disconnect(reason))
                assert watcher.receive().payload == b"gone"


@BOTH
def test_will_is_published_once(broker: Hosted, name: str, version: int) -> None:
    """Is it gone with its publication, and not published for a later connection?"""
    asked = Properties(session_expiry_interval=60) if version == MQTT_5 else NO_PROPERTIES
    with join(broker, name + "w", version) as watcher:
        watcher.subscribe(name, qos=1)
        client = Talk(broker.port, name, version)
        client.connect(clean=False, properties=asked, will=Will(name, b"gone", 1))
        client.close()
        assert watcher.receive().payload == b"gone"
        for _ in range(2):
            client = Talk(broker.port, name, version)
            assert client.connect(clean=False, properties=asked).session_present
            client.close()
        assert nothing_comes(broker, watcher)


@BOTH
def test_where_there_is_no_will_none_is_published(broker: Hosted, name: str, version: int) -> None:
    """Does a connection without a will end in silence, also after one that had a will?"""
    with join(broker, name + "w", version) as watcher:
        watcher.subscribe(f"{name}/#", qos=1)
        with with_will(broker, name, version, Will(f"{name}/will", b"gone", 1)) as client:
            client.disconnect()
        for _ in range(3):
            with_will(broker, name, version, None).close()
        assert nothing_comes(broker, watcher)


@BOTH
def test_will_without_retain_is_not_kept(broker: Hosted, name: str, version: int) -> None:
    """Is it a message like any other, and what was retained before it still there?"""
    with join(broker, name + "w", version) as watcher:
        watcher.publish(f"{name}/1", b"kept", 1, retain=True)
        watcher.subscribe(f"{name}/+", qos=1)
        assert watcher.receive().retain
        for part in "12":
            with_will(broker, name, version, Will(f"{name}/{part}", b"gone", 1)).close()
            assert watcher.receive().payload == b"gone"
    with join(broker, name + "r", version) as reader:
        reader.subscribe(f"{name}/+", qos=1)
        said = [one for one in reader.settle() if isinstance(one, Publish)]
        assert [(one.name, one.payload) for one in said] == [(f"{name}/1", b"kept")]


@BOTH
def test_will_with_retain_is_kept(broker: Hosted, name: str, version: int) -> None:
    """Is it what later subscribers get, in place of what was retained before?"""
    with join(broker, name + "w", version) as watcher:
        watcher.publish(name, b"online", 1, retain=True)
        watcher.subscribe(Subscription(name, 1, retain_as_published=True))
        assert watcher.receive().payload == b"online"
        with_will(broker, name, version, Will(name, b"offline", 1, True)).close()
        live = watcher.receive()
        assert (live.payload, live.retain) == (b"offline", version == MQTT_5)
    with join(broker, name + "r", version) as reader:
        reader.subscribe(name, qos=1)
        late = reader.receive()
        assert (late.payload, late.retain) == (b"offline", True)
