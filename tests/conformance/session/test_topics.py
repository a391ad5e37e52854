"""Names and filters: their characters, their lengths, and what matches what."""

from __future__ import annotations

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Publish, Suback
from penstock.mqtt.reasons import Reason
from tests.conformance import spelled
from tests.conformance.talk import BOTH, join
from tests.doors.hosted import Hosted


@BOTH
@pytest.mark.parametrize("filter", ["a#", "#/a", "a/#/b", "a/#b", "##", "a/b#"])
def test_number_sign_stands_alone_at_the_end(
    broker: Hosted, name: str, version: int, filter: str
) -> None:
    """Is a filter refused in which # is not the whole last level?"""
    _assert_refused(broker, name, version, filter)


@BOTH
@pytest.mark.parametrize("filter", ["a+", "+a", "a/+b/c", "++", "a/b+"])
def test_plus_takes_a_whole_level(broker: Hosted, name: str, version: int, filter: str) -> None:
    """Is a filter refused in which + is only a part of a level?"""
    _assert_refused(broker, name, version, filter)


def _assert_refused(broker: Hosted, name: str, version: int, filter: str) -> None:
    with join(broker, name, version) as client:
        client.send_bytes(spelled.subscribe(version, 1, (filter, 0), ("+/fine/#", 0)))
        raw = client.next_raw()
        failed = Reason.TOPIC_FILTER_INVALID if version == MQTT_5 else 0x80
        assert list(raw[-2:]) == [failed, 0]


@BOTH
def test_wildcards_match_at_every_level(broker: Hosted, name: str, version: int) -> None:
    """Does # match the level above and all below, and + exactly one level, empty ones too?"""
    matching = {
        f"{name}/#": ["", "/", "/a", "/a/b", "//b"],
        f"{name}/+": ["/", "/a"],
        f"{name}/+/b": ["/a/b", "//b"],
        f"{name}/+/+": ["/a/b", "//b"],
        f"{name}/+/#": ["/", "/a", "/a/b", "//b"],
        f"+/a/{name}": [],
    }
    names = ["", "/", "/a", "/a/b", "//b"]
    with join(broker, name + "p", version) as writer:
        for filter, expected in matching.items():
            with join(broker, name, version) as client:
                client.subscribe(filter)
                for one in names:
                    writer.publish(name + one, b"x")
                writer.settle()
                got = [one.name for one in client.settle() if isinstance(one, Publish)]
                assert got == [name + one for one in expected], filter


@BOTH
def test_dollar_names_are_not_matched_by_a_leading_wildcard(
    broker: Hosted, name: str, version: int
) -> None:
    """Do # and + at the beginning leave names that begin with $ alone, live and retained?"""
    hidden = f"$own/{name}"
    with join(broker, name, version) as client, join(broker, name + "p", version) as writer:
        client.subscribe("#", "+/#", f"+/{name}", qos=1)
        writer.publish(hidden, b"live", 1)
        writer.publish(hidden, b"kept", 1, retain=True)
        client.subscribe("#", "+/#", f"+/{name}", qos=1)
        said = [one for one in client.settle() if isinstance(one, Publish)]
        assert [one.name for one in said if one.name.startswith("$")] == []
        client.subscribe("$own/+", qos=1)
        assert client.pick(Publish).payload == b"kept"
        writer.publish(hidden, b"", 1, retain=True)


@BOTH
def test_dollar_names_are_not_matched_by_a_shared_leading_wildcard(
    broker: Hosted, name: str, version: int
) -> None:
    """Is it the filter behind `$share/name/` that counts, and not the `$` before it?"""
    with join(broker, name, version) as client, join(broker, name + "p", version) as writer:
        client.subscribe(f"$share/{name}/#", qos=1)
        writer.publish(f"$own/{name}", b"hidden", 1)
        writer.publish(name, b"plain", 1)
        assert client.receive().payload == b"plain"
        assert client.settle() == []


@BOTH
def test_names_and_filters_have_a_character(broker: Hosted, name: str, version: int) -> None:
    """Is an empty name or filter refused?"""
    missing = Reason.PROTOCOL_ERROR  # of a name: MQTT 5 would allow it beside a topic alias
    for packet, reason in (
        (spelled.publish(version, "", b"x"), missing),
        (spelled.subscribe(version, 1, ("", 0)), Reason.TOPIC_FILTER_INVALID),
        (spelled.unsubscribe(version, 1, ""), Reason.TOPIC_FILTER_INVALID),
    ):
        with join(broker, name, version) as client:
            client.send_bytes(packet)
            client.assert_ended(reason)


@BOTH
def test_longest_name_is_65535_bytes(broker: Hosted, name: str, version: int) -> None:
    """Can the longest name that fits its length be used, and does none go beyond it?"""
    longest = name.ljust(65_535, "x")
    with join(broker, name, version) as client:
        client.send_bytes(spelled.subscribe(version, 1, (longest, 1)))
        assert client.expect(Suback).reasons == (1,)
        client.publish(longest, b"x", 1)
        message = client.receive()
        assert message.name == longest
        client.send_bytes(spelled.unsubscribe(version, 2, longest))
        client.next()


@BOTH
def test_names_are_compared_as_they_are(broker: Hosted, name: str, version: int) -> None:
    """Is nothing normalised: case, composed letters, slashes, spaces, look-alikes?"""
    alike = [
        "caf\u00e9",
        "cafe\u0301",
        "CAF\u00c9",
        "caf\u00e9 ",
        "caf\u00e9/",
        "\u212b",
        "\u00c5",
        "\ufffd",
    ]
    readers = [join(broker, f"{name}{at}", version) for at in range(len(alike))]
    for reader, one in zip(readers, alike, strict=True):
        reader.subscribe(f"{name}/{one}", qos=1)
    with join(broker, name, version) as writer:
        for one in alike:
            writer.publish(f"{name}/{one}", one.encode(), 1)
    for reader, one in zip(readers, alike, strict=True):
        message = reader.receive()
        assert (message.name, message.payload) == (f"{name}/{one}", one.encode())
        assert reader.settle() == []
        reader.close()
