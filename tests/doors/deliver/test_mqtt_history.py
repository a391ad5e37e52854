"""History for MQTT clients: does `from` bring every record from there on, once, and `where` only
those that pass?
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from penstock.broker.deliver.history import FEEDS_MAX
from penstock.core.access import RECEIVE, Principal, authorise
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import (
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.deliver.history_clients import client, numbers, payloads, publish, said
from tests.doors.hosted import Hosted
from tests.doors.wire import connect_kept


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_history_comes_before_what_is_new_each_once_and_in_order(
    broker: Hosted, name: str, qos: int
) -> None:
    publish(broker, name, *numbers(0, 30), qos=2)
    with client(broker) as reader:
        answer = reader.subscribe_feed(name, qos=qos, from_="earliest")
        assert answer.reasons == (Reason(qos),)
        assert payloads(reader, 30) == numbers(0, 30)
        publish(broker, name, *numbers(30, 40), qos=2)
        assert payloads(reader, 10) == numbers(30, 40)
        assert reader.settle() == []


def test_records_of_qos_0_are_history_too(broker: Hosted, name: str) -> None:
    publish(broker, name, *numbers(0, 5), qos=0)
    publish(broker, name, b"5", qos=1)  # is acknowledged: by then all are stored
    with client(broker) as reader:
        reader.subscribe_feed(name, qos=2, from_="earliest")
        received = [reader.receive() for _ in range(6)]
        assert [message.payload for message in received] == numbers(0, 6)
        assert [message.qos for message in received] == [0] * 5 + [1]


def test_records_say_their_topic_offset_and_time(broker: Hosted, name: str) -> None:
    broker.run(lambda server: server.broker.create_topic(name))
    with client(broker) as publisher:
        properties = Properties(user_properties=(("unit", "C"), ("penstock-offset", "77")))
        publisher.send(Publish(f"{name}/a", b"0", 1, packet_id=9, properties=properties))
        publisher.expect(Puback)
    with client(broker) as reader:
        reader.subscribe_feed(f"{name}/#", from_="earliest")
        message = reader.receive()
        assert message.properties.user_properties == (
            ("unit", "C"),
            ("penstock-topic", name),
            ("penstock-offset", "0"),
            ("penstock-time", said(message, "penstock-time")),
        )
        reader.subscribe_feed(f"{name}/#", from_=said(message, "penstock-time"))
        assert reader.receive() == message


@pytest.mark.parametrize(
    ("position", "first"), [("earliest", 0), ("7", 7), ("-1h", 0), ("latest", 10)]
)
def test_each_kind_of_position_begins_where_it_says(
    broker: Hosted, name: str, position: str, first: int
) -> None:
    broker.run(lambda server: server.broker.create_topic(name))
    publish(broker, name, *numbers(0, 10))
    with client(broker) as reader:
        reader.subscribe_feed(f"{name}/#", qos=1, from_=position)
        publish(broker, name, b"10")
        assert payloads(reader, 11 - first) == numbers(first, 11)
        assert reader.settle() == []


def test_a_filter_over_several_topics_reads_the_history_of_each(broker: Hosted, name: str) -> None:
    broker.run(lambda server: server.broker.create_topic(name))
    publish(broker, f"{name}/x", *numbers(0, 3))
    publish(broker, f"other-{name}/x", *numbers(3, 6))
    with client(broker) as reader:
        reader.subscribe_feed("+/x", where=f"name LIKE '%{name}/x'", from_="earliest", qos=1)
        assert sorted(payloads(reader, 6)) == numbers(0, 6)
        assert reader.settle() == []


def test_where_filters_history_and_what_is_new(broker: Hosted, name: str) -> None:
    publish(broker, name, b'{"t": 1}', b'{"t": 30}', b"no json", b'{"t": 31}')
    with client(broker) as reader:
        reader.subscribe_feed(name, qos=1, from_="earliest", where="payload.t > 20")
        assert payloads(reader, 2) == [b'{"t": 30}', b'{"t": 31}']
        publish(broker, name, b'{"t": 2}', b'{"t": 32}')
        assert payloads(reader, 1) == [b'{"t": 32}']
        assert reader.settle() == []


def test_where_alone_begins_now(broker: Hosted, name: str) -> None:
    publish(broker, name, b"50")
    with client(broker) as reader:
        reader.subscribe_feed(name, qos=1, where="payload = '50' OR payload = '60'")
        publish(broker, name, b"60", b"70")
        assert payloads(reader, 1) == [b"60"]
        assert reader.settle() == []


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ({"from_": "yesterday"}, "position 'yesterday' is not a position"),
        ({"from_": "-5"}, "a duration has a unit"),
        ({"from_": "3", "filter": "#"}, "an offset belongs to one topic"),
        ({"from_": "999999999"}, "use an offset from"),
        ({"where": "payload ="}, "it ends where a value is missing"),
        ({"filter": "$share/g/a", "from_": "earliest"}, "is a shared subscription"),
        ({"filter": "$SYS/#", "from_": "earliest"}, "has no history"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(
    broker: Hosted, name: str, asked: dict[str, str], rule: str
) -> None:
    broker.run(lambda server: server.broker.create_topic("another", exist_ok=True))
    filter = asked.pop("filter", name)
    with client(broker) as reader:
        answer = reader.subscribe_feed(filter, qos=1, **asked)
        assert answer.reasons == (Reason.IMPLEMENTATION_SPECIFIC_ERROR,)
        assert rule in (answer.properties.reason_string or "")
        publish(broker, name, b"nobody hears this")
        assert reader.settle() == []


def test_a_client_that_wants_no_reasons_gets_none(broker: Hosted, name: str) -> None:
    with client(broker, properties=Properties(request_problem_information=0)) as reader:
        answer = reader.subscribe_feed(name, from_="yesterday")
        assert answer.reasons == (Reason.IMPLEMENTATION_SPECIFIC_ERROR,)
        assert answer.properties.reason_string is None


def test_a_property_given_twice_is_refused(broker: Hosted, name: str) -> None:
    twice = Properties(user_properties=(("from", "0"), ("from", "1")))
    with client(broker) as reader:
        reader.send(Subscribe(1, (Subscription(name),), twice))
        answer = reader.expect(Suback)
        assert answer.reasons == (Reason.IMPLEMENTATION_SPECIFIC_ERROR,)
        assert "is given twice" in (answer.properties.reason_string or "")


def test_of_several_filters_the_bad_one_is_refused_and_the_others_are_granted(
    broker: Hosted, name: str
) -> None:
    publish(broker, name, b"0")
    with client(broker) as reader:
        answer = reader.subscribe_feed(name, "a/#/b", "#", from_="0")
        assert answer.reasons[0] == Reason.GRANTED_QOS_0
        assert answer.reasons[1] == Reason.TOPIC_FILTER_INVALID
        assert "a level after '#'" in (answer.properties.reason_string or "")
        assert reader.receive().payload is not None


def test_a_session_has_at_most_so_many_feeds(broker: Hosted, name: str) -> None:
    with client(broker) as reader:
        filters = [f"{name}/{number}" for number in range(FEEDS_MAX)]
        answer = reader.subscribe_feed(*filters, from_="latest")
        assert set(answer.reasons) == {Reason.GRANTED_QOS_0}
        answer = reader.subscribe_feed(f"{name}/more", filters[0], from_="latest")
        assert answer.reasons == (Reason.QUOTA_EXCEEDED, Reason.GRANTED_QOS_0)
        assert f"more than {FEEDS_MAX}" in (answer.properties.reason_string or "")
        assert reader.subscribe(f"{name}/plain").reasons == (Reason.GRANTED_QOS_0,)


def test_a_feed_and_a_plain_subscription_each_bring_a_copy(broker: Hosted, name: str) -> None:
    publish(broker, name, b"old")
    with client(broker) as reader:
        reader.subscribe(f"{name}/#", qos=1)
        reader.subscribe_feed(name, qos=1, from_="earliest")
        assert said(reader.receive(), "penstock-offset").isdigit()
        publish(broker, name, b"new")
        both = [reader.receive(), reader.receive()]
        assert [message.payload for message in both] == [b"new", b"new"]
        assert sorted(len(one.properties.user_properties) for one in both) == [0, 3]
        assert reader.settle() == []


def test_subscribing_again_starts_anew_and_plain_ends_the_feed(broker: Hosted, name: str) -> None:
    publish(broker, name, *numbers(0, 3))
    with client(broker) as reader:
        for _ in range(2):
            reader.subscribe_feed(name, qos=1, from_="earliest")
            assert payloads(reader, 3) == numbers(0, 3)
        assert reader.subscribe(name, qos=1).reasons == (Reason.GRANTED_QOS_1,)
        publish(broker, name, b"3")
        message = reader.receive()
        assert message.payload == b"3" and not message.properties.user_properties
        assert reader.settle() == []


def test_unsubscribe_ends_a_feed_also_before_its_answer(broker: Hosted, name: str) -> None:
    publish(broker, name, *numbers(0, 3))
    hour = Properties(user_properties=(("from", "-1h"),))
    with client(broker) as reader:
        reader.send(
            Subscribe(1, (Subscription(name),), hour),
            Unsubscribe(2, (name,)),
            Subscribe(3, (Subscription(f"{name}/other"),)),
        )
        assert reader.pick(Suback, 1).reasons == (Reason.GRANTED_QOS_0,)
        assert reader.pick(Unsuback, 2).reasons == (Reason.SUCCESS,)
        assert reader.pick(Suback, 3).reasons == (Reason.GRANTED_QOS_0,)
        reader.settle()  # what was on its way
        publish(broker, name, b"3")
        assert reader.settle() == []
    assert broker.call(lambda: [*broker.exchange.feeds._open]) == []


def test_no_local_identifier_and_retain_as_published_hold_for_feeds(
    broker: Hosted, name: str
) -> None:
    with client(broker, f"{name}-me") as reader:
        reader.publish(name, b"mine", 1)
        publish(broker, name, b"theirs")
        with client(broker) as publisher:
            publisher.publish(name, b"kept", 1, retain=True)
        wanted = Subscription(name, 1, no_local=True, retain_as_published=True, retain_handling=2)
        asked = Properties(user_properties=(("from", "earliest"),), subscription_identifiers=(7,))
        reader.send(Subscribe(1, (wanted,), asked))
        reader.expect(Suback)
        first, second = reader.receive(), reader.receive()
        assert [first.payload, second.payload] == [b"theirs", b"kept"]
        assert [first.retain, second.retain] == [False, True]
        assert first.properties.subscription_identifiers == (7,)
        reader.subscribe_feed(Subscription(name, 1, retain_handling=2), from_="earliest")
        assert [reader.receive().retain for _ in range(3)] == [False] * 3
        assert reader.settle() == []


def test_what_is_retained_from_before_the_beginning_comes_first(broker: Hosted, name: str) -> None:
    with client(broker) as publisher:
        publisher.publish(f"{name}/hot", b"30", 1, retain=True)
        publisher.publish(f"{name}/cold", b"3", 1, retain=True)
    with client(broker) as reader:
        reader.subscribe_feed(f"{name}/+", qos=1, where="payload = '30'")
        message = reader.receive()
        assert (message.payload, message.retain) == (b"30", True)
        assert said(message, "penstock-offset").isdigit()
        # From the beginning on the history brings it: once, and not as a retained message.
        reader.subscribe_feed(f"{name}/+", qos=1, from_="earliest")
        assert [(m.payload, m.retain) for m in (reader.receive(), reader.receive())] == [
            (b"30", False),
            (b"3", False),
        ]
        assert reader.settle() == []


def test_history_is_paced_by_the_window(broker: Hosted, name: str) -> None:
    publish(broker, name, *numbers(0, 20))
    with client(broker, properties=Properties(receive_maximum=3)) as reader:
        reader.subscribe_feed(name, qos=1, from_="earliest")
        out = [reader.expect(Publish) for _ in range(3)]
        assert reader.settle() == []
        reader.send(Puback(out[0].packet_id))
        out.append(reader.expect(Publish))
        assert reader.settle() == []
        for message in out[1:]:
            reader.send(Puback(message.packet_id))
        rest = payloads(reader, 16)
        assert [message.payload for message in out] + rest == numbers(0, 20)


def test_history_at_qos_0_waits_for_a_client_that_reads_slowly(broker: Hosted, name: str) -> None:
    """More than the connection may hold: nothing of it is dropped."""
    large = bytes(512 * 1024)
    publish(broker, name, *[b"%02d" % number + large for number in range(40)])
    before = broker.dropped["queue_full"]
    with client(broker) as reader:
        reader.subscribe_feed(name, from_="earliest")
        time.sleep(0.2)  # so long nothing is read
        assert [payload[:2] for payload in payloads(reader, 40)] == [
            b"%02d" % number for number in range(40)
        ]
    assert broker.dropped["queue_full"] == before


def test_records_larger_than_what_may_wait_for_a_client_come_too(broker: Hosted, name: str) -> None:
    """Two of them are more than a connection may hold at QoS 0."""
    publish(broker, name, b"0" + bytes(9 << 20), b"1" + bytes(9 << 20), b"2")
    before = broker.dropped["queue_full"]
    with client(broker) as reader:
        reader.subscribe_feed(name, from_="earliest")
        assert [payload[:1] for payload in payloads(reader, 3)] == [b"0", b"1", b"2"]
    assert broker.dropped["queue_full"] == before


def test_a_damaged_topic_keeps_its_feed_waiting_and_the_others_go_on(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker:
        broker.run(lambda server: server.broker.create_topic("bad"))
        broker.run(lambda server: server.broker.create_topic("good"))
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        reader.subscribe_feed("+/x", qos=1, from_="earliest")
        reader.disconnect()
        publish(broker, "bad/x", b"0")
        publish(broker, "good/x", b"1")
    (directory,) = (tmp_path / "default").glob("bad-*")
    directory.rename(tmp_path / "elsewhere")
    with Hosted(tmp_path) as broker:
        reader, is_present = connect_kept(broker.port, "reader", MQTT_5)
        assert is_present
        assert payloads(reader, 1) == [b"1"]
        answer = reader.subscribe_feed("bad/#", from_="0")
        assert answer.reasons == (Reason.IMPLEMENTATION_SPECIFIC_ERROR,)
        assert "is unavailable" in (answer.properties.reason_string or "")
        reader.disconnect()
    (tmp_path / "elsewhere").rename(directory)
    with Hosted(tmp_path) as broker:
        reader, _ = connect_kept(broker.port, "reader", MQTT_5)
        assert payloads(reader, 1) == [b"0"]
        assert reader.settle() == []
        reader.close()


def test_only_names_that_the_client_may_receive_are_replayed(broker: Hosted, name: str) -> None:
    def no_secrets(principal: Principal, action: str, asked: str, topic: str) -> bool:
        if action == RECEIVE and asked.endswith("/secret"):
            return False
        return authorise(principal, action, asked, topic)

    publish(broker, f"{name}/open", b"0")
    publish(broker, f"{name}/secret", b"1")
    broker.call(lambda: setattr(broker.exchange.feeds, "_authorise", no_secrets))
    try:
        with client(broker) as reader:
            reader.subscribe_feed(f"{name}/#", qos=1, from_="earliest")
            publish(broker, f"{name}/secret", b"2")
            publish(broker, f"{name}/open", b"3")
            assert payloads(reader, 2) == [b"0", b"3"]
            assert reader.settle() == []
    finally:
        broker.call(lambda: setattr(broker.exchange.feeds, "_authorise", authorise))


def test_expired_records_are_passed_over(broker: Hosted, name: str) -> None:
    with client(broker) as publisher:
        short = Properties(message_expiry_interval=1)
        publisher.send(Publish(name, b"gone", 1, packet_id=1, properties=short))
        publisher.expect(Puback)
        publisher.publish(name, b"stays", 1)
    broker.wait_past_us(1_100_000)
    with client(broker) as reader:
        reader.subscribe_feed(name, qos=1, from_="earliest")
        assert reader.receive().payload == b"stays"
        assert reader.settle() == []


# Publishers at work


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publishers_at_work_leave_neither_gap_nor_repeat(
    broker: Hosted, name: str, qos: int
) -> None:
    """Readers attach at moments of their own while four clients publish as fast as they can."""
    total = 400

    def work(part: int) -> None:
        with client(broker) as publisher:
            for number in range(part * total // 4, (part + 1) * total // 4):
                publisher.publish(f"{name}/{part}", b"%d" % number, number % 3)
            publisher.publish(f"{name}/{part}", b"end", 1)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    readers = []
    for turn in range(4):
        window = Properties(receive_maximum=(1, 5, 100, 1000)[turn])
        reader = client(broker, properties=window)
        reader.subscribe_feed(f"{name}/+", qos=qos, from_="earliest" if turn % 2 else "-1h")
        readers.append(reader)
        time.sleep(0.02)
    expected = sorted([*numbers(0, total), *[b"end"] * 4])
    orders = []
    for reader in readers:
        received = [reader.receive() for _ in range(total + 4)]
        assert sorted(message.payload for message in received) == expected
        offsets = [int(said(message, "penstock-offset")) for message in received]
        assert offsets == sorted(set(offsets))
        assert reader.settle() == []
        orders.append([message.payload for message in received])
        reader.close()
    for thread in threads:
        thread.join(30)
    assert all(order == orders[0] for order in orders)
