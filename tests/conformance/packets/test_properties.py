"""What travels with a message, and what the client asked for when it connected."""

from __future__ import annotations

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import Reason
from tests.conformance import spelled
from tests.conformance.talk import Talk, come_back, join
from tests.doors.hosted import Hosted
from tests.doors.wire import SentAt


def assert_unaltered(broker: Hosted, name: str, said: Properties) -> None:
    """Live at every QoS, retained, and from the log to somebody who was away."""
    away, _ = come_back(broker, name + "away", MQTT_5)
    away.subscribe(name, qos=1)
    away.close()
    with join(broker, name) as reader, join(broker, name + "p") as writer:
        reader.subscribe(name, qos=2)
        for qos in range(3):
            writer.send(Publish(name, b"x", qos, True, packet_id=qos, properties=said))
            if qos == 2:
                writer.pick(Pubrec)
            assert reader.receive().properties == said
    with join(broker, name) as late:
        late.subscribe(name, qos=1)
        assert late.receive().properties == said
    away, _ = come_back(broker, name + "away", MQTT_5)
    for _ in range(2):
        assert away.receive().properties == said
    away.close()


@pytest.mark.parametrize("indicator", [None, 0, 1])
def test_payload_format_indicator_is_handed_on(
    broker: Hosted, name: str, indicator: int | None
) -> None:
    """Do subscribers get it as it was: 0, 1 or not at all?"""
    assert_unaltered(broker, name, Properties(payload_format_indicator=indicator))


@pytest.mark.parametrize("topic", ["answers/here", "/", "$private/\u00e9", "\ufeff"])
def test_response_topic_is_handed_on(broker: Hosted, name: str, topic: str) -> None:
    """Do subscribers get the name to answer to as it was?"""
    assert_unaltered(broker, name, Properties(response_topic=topic))


@pytest.mark.parametrize("wrong", ["#", "+", "a/+/b", "a#"])
def test_response_topic_has_no_wildcards(broker: Hosted, name: str, wrong: str) -> None:
    """Is a message refused whose answers would have to go to a filter?"""
    with join(broker, name) as client:
        said = b"\x08" + spelled.text(wrong)
        client.send_bytes(spelled.publish(MQTT_5, name, b"x", said=said))
        client.assert_ended(Reason.TOPIC_NAME_INVALID)


@pytest.mark.parametrize("data", [b"", bytes(range(256)), b"x" * 20_000], ids=len)
def test_correlation_data_is_handed_on(broker: Hosted, name: str, data: bytes) -> None:
    """Do subscribers get it byte for byte?"""
    assert_unaltered(broker, name, Properties(correlation_data=data))


@pytest.mark.parametrize("kind", ["", "text/plain; charset=\u00fc", "\ufeffx"])
def test_content_type_is_handed_on(broker: Hosted, name: str, kind: str) -> None:
    """Do subscribers get it as it was, whatever it says?"""
    assert_unaltered(broker, name, Properties(content_type=kind))


def test_user_properties_are_handed_on_in_their_order(broker: Hosted, name: str) -> None:
    """Do all of them arrive, doubles and empty ones included, in the order they were sent in?"""
    pairs = (("b", "2"), ("a", "1"), ("b", "2"), ("", ""), ("a", ""), ("\ufeff", "\u00fc"))
    assert_unaltered(broker, name, Properties(user_properties=pairs))


def test_user_properties_may_have_any_name(broker: Hosted, name: str) -> None:
    """Do those arrive that are called like the headers in which the log keeps properties?"""
    keys = ("mqtt.content-type", "mqtt.response-topic", "mqtt.correlation-data")
    keys += ("mqtt.payload-format", "mqtt.user.", "mqtt.user.mqtt.content-type", "mqtt.", "user")
    pairs = tuple((key, value) for key in keys for value in ("", "a/#", "1"))
    assert_unaltered(broker, name, Properties(content_type="x", user_properties=pairs))


def test_time_spent_waiting_is_taken_off_the_message_expiry(broker: Hosted, name: str) -> None:
    """Is the interval that a subscriber gets the one received less the time spent here?"""
    away, _ = come_back(broker, name, MQTT_5)
    away.subscribe(name, qos=1)
    away.close()
    with join(broker, name + "p") as writer, join(broker, name + "r") as live:
        live.subscribe(name, qos=1)
        asked = Properties(message_expiry_interval=1000)
        sent = SentAt()
        writer.send(Publish(name, b"x", 1, True, packet_id=1, properties=asked))
        sent.check_left(live.receive().properties.message_expiry_interval, 1000)
        broker.wait_past_us(2_000_000)
        away, _ = come_back(broker, name, MQTT_5)
        sent.check_left(away.receive().properties.message_expiry_interval, 1000, waited_s=2)
        away.close()
        live.subscribe(name, qos=1)
        sent.check_left(live.receive().properties.message_expiry_interval, 1000, waited_s=2)


# What CONNECT asked for


def test_response_information_is_given_to_nobody_who_did_not_ask(broker: Hosted, name: str) -> None:
    """Is it absent where 0 was asked for, or nothing? It may be absent for others as well."""
    for asked in (NO_PROPERTIES, Properties(request_response_information=0)):
        with Talk(broker.port, name, MQTT_5) as client:
            assert client.connect(properties=asked).properties.response_information is None


def failing(name: str) -> list[Packet]:
    """Requests that are refused, each with room for an explanation."""
    return [
        Subscribe(1, (Subscription("a/#/b"), Subscription("$share//x"))),
        Subscribe(7, (Subscription("a"),), Properties(user_properties=(("where", "not this"),))),
        Unsubscribe(2, ("never/had", "#/x")),
        Publish("$SYS/x", b"x", 1, packet_id=3),
        Publish("$SYS/x", b"x", 2, packet_id=4),
        Pubrel(5),
        Publish(name, b"x", 1, packet_id=6),
    ]


def test_nobody_who_wants_no_explanations_gets_any(broker: Hosted, name: str) -> None:
    """With problem information 0, are reason strings and user properties only where they may be?"""
    for asked, is_explained in (({}, True), ({"request_problem_information": 0}, False)):
        with join(broker, name, MQTT_5, **asked) as client:
            client.send(*failing(name))
            explained = False
            for packet in client.settle():
                assert isinstance(packet, Suback | Unsuback | Puback | Pubrec | Pubcomp)
                said = packet.properties
                explained |= said.reason_string is not None or said.user_properties != ()
            assert explained is is_explained


@pytest.mark.parametrize("size", [20, 40, 60])
def test_no_packet_is_larger_than_the_client_takes(broker: Hosted, name: str, size: int) -> None:
    """Does every answer fit the maximum packet size, with or without its explanation?"""
    with Talk(broker.port, name, MQTT_5) as client:
        client.connect(properties=Properties(maximum_packet_size=size))
        assert len(client.raw) <= size
        client.send(*failing(name))
        kinds = set()
        for packet in client.settle():
            kinds.add(type(packet))
            assert len(spelled.frame(0, b"")) <= len(client.raw) <= size
        assert {Suback, Unsuback, Puback, Pubrec, Pubcomp} >= kinds >= {Puback, Pubrec}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_client_that_takes_no_answer_at_all_is_closed(broker: Hosted, name: str, size: int) -> None:
    """Is nothing sent, not even to a ping, where no CONNACK fits the maximum packet size?"""
    with Talk(broker.port, name, MQTT_5) as client:
        asked = b"\x27" + size.to_bytes(4, "big")
        client.send_bytes(spelled.connect(MQTT_5, name, asked=asked) + b"\xc0\x00")
        assert client.ends_without_a_word()


def test_client_whose_packets_are_too_small_for_our_answer_is_told_so(
    broker: Hosted, name: str
) -> None:
    """Where a CONNACK that refuses fits, but none that lets in: is the reason 0x95?"""
    older = join(broker, name)
    with Talk(broker.port, name, MQTT_5) as client:
        client.send(Connect(name, version=MQTT_5, properties=Properties(maximum_packet_size=5)))
        assert client.next_raw() == bytes((0x20, 0x03, 0x00, Reason.PACKET_TOO_LARGE, 0x00))
        assert client.ends_without_a_word()
    assert older.settle() == []  # nobody was let in, so nobody was taken over
    older.close()


def test_message_too_large_for_its_reader_counts_as_sent(broker: Hosted, name: str) -> None:
    """Is it thrown away, its place in the window free, and everything else delivered?"""
    client, _ = come_back(
        broker, name, MQTT_5, maximum_packet_size=len(name) + 60, receive_maximum=1
    )
    client.subscribe(name, qos=2)
    before = broker.dropped["too_large"]
    with join(broker, name + "p") as writer:
        for number in range(6):
            writer.publish(name, b"%d" % number * (100 if number % 2 else 1), 1 + number % 3 // 2)
    assert [client.receive().payload for _ in range(3)] == [b"0", b"2", b"4"]
    while broker.dropped["too_large"] < before + 3:
        assert client.settle() == []
    client.close()
    client, _ = come_back(broker, name, MQTT_5)  # it now takes any size, but they were sent
    assert client.settle() == []
    client.close()


def test_broker_without_limits_on_qos_and_retain_announces_none(broker: Hosted, name: str) -> None:
    """Is a CONNACK without Maximum QoS and Retain Available true: do QoS 2 and RETAIN work?"""
    with Talk(broker.port, name, MQTT_5) as client:
        offers = client.connect().properties
        assert (offers.maximum_qos, offers.retain_available) == (None, None)
        assert client.subscribe(name, qos=2).reasons == (Reason.GRANTED_QOS_2,)
        client.publish(name, b"x", 2, retain=True)
        assert client.receive().qos == 2
        client.subscribe(name, qos=2)
        assert client.receive().retain


def test_will_at_any_qos_and_retained_is_welcome(broker: Hosted, name: str) -> None:
    """Is no CONNECT refused for the QoS of its will or for its retain flag?"""
    will = (spelled.properties(MQTT_5), spelled.text(f"{name}/w"), spelled.text("gone"))
    for qos in range(3):
        for retain in (0, 0x20):
            with Talk(broker.port, name, MQTT_5) as client:
                flags = 0x06 | qos << 3 | retain
                client.send_bytes(spelled.connect(MQTT_5, name, *will, flags=flags))
                assert client.expect(Connack).reason == Reason.SUCCESS
                client.disconnect()


def test_packet_larger_than_the_broker_takes_closes(broker: Hosted, name: str) -> None:
    """Is a client that exceeds the announced Maximum Packet Size told 0x95?"""
    with Talk(broker.port, name, MQTT_5) as client:
        most = client.connect().properties.maximum_packet_size
        assert most is not None
        client.send_bytes(b"\x30" + spelled.length(most))  # with these bytes it is larger
        client.assert_ended(Reason.PACKET_TOO_LARGE)
