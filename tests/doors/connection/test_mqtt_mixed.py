"""Messages of many names in one send are stored and handed on as if each had come alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.doors.mqtt.receive.mixed import ROUTES_MAX
from penstock.model.limits import NAME_LEVELS_MAX
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Disconnect, Puback, Publish, Subscription
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire
from tests.examples import examples

TOPICS = ("mixed", "other")
LEAVES = ("a", "b", "c", "c/d")
ROUNDS = count()

names = st.builds("{}/{}".format, st.sampled_from(TOPICS), st.sampled_from(LEAVES))
labels = st.sampled_from([NO_PROPERTIES, Properties(user_properties=(("k", "v"),))])
READERS = [
    ("all", MQTT_3_1_1),
    ("all", MQTT_5),
    ("narrow", MQTT_3_1_1),
    ("narrow", MQTT_5),
    ("shared", MQTT_5),
    ("own", MQTT_5),
]
# Mostly plain: what is not is between neighbours that are.
qualities = st.sampled_from([0] * 8 + [1])
retained = st.sampled_from([False] * 8 + [True])


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with Hosted(tmp_path_factory.mktemp("data")) as hosted:
        for topic in TOPICS:
            hosted.run(lambda server, topic=topic: server.broker.create_topic(topic))  # type: ignore[misc]
        yield hosted


def chunk(version: int, *packets: Publish) -> bytes:
    return b"".join(encode(one, version) for one in packets)


Said = tuple[str, bytes, Properties]


def taken(reader: Wire, base: str) -> dict[str, list[Said]]:
    """What a reader has of a round, by topic, up to the end that was marked in both."""
    by_topic: dict[str, list[Said]] = {topic: [] for topic in TOPICS}
    ends = 0
    while ends < len(TOPICS):
        message = reader.receive()
        topic, _, rest = message.name.partition("/")
        if rest.endswith("/end"):
            ends += 1
            continue
        said = message.properties.user_properties
        own = tuple(one for one in said if not one[0].startswith("penstock-"))
        properties = Properties(user_properties=own)
        by_topic[topic].append((rest.removeprefix(f"{base}/"), message.payload, properties))
    return by_topic


def ends(house: Hosted) -> list[int]:
    """How many records each topic has."""
    topics = house.exchange.engine.topics
    return house.call(lambda: [topics.get(topic).log.bounds().end for topic in TOPICS])


class Reader:
    """How one of them reads, and what it is to have."""

    def __init__(self, wire: Wire, kind: str, base: str) -> None:
        self.wire = wire
        self.kind = kind
        self.base = base
        filters = [f"{topic}/{base}/#" for topic in TOPICS]
        if kind == "narrow":
            filters = [f"mixed/{base}/a", *[f"{topic}/{base}/end" for topic in TOPICS]]
        elif kind == "shared":
            filters = [f"$share/{base}/{one}" for one in filters]
        is_own = kind == "own"
        wire.subscribe(*[Subscription(one, 1, no_local=is_own) for one in filters])

    def check(self, sent: dict[str, list[Said]]) -> None:
        if self.kind == "own":
            assert not [one for one in self.wire.settle() if isinstance(one, Publish)]
            return
        if self.kind == "narrow":
            sent = {"mixed": [one for one in sent["mixed"] if one[0] == "a"], "other": []}
        if self.wire.version != MQTT_5:
            sent = {
                topic: [(leaf, payload, NO_PROPERTIES) for leaf, payload, _ in all_]
                for topic, all_ in sent.items()
            }
        assert taken(self.wire, self.base) == sent, self.kind


@examples(100)
@given(
    st.lists(st.tuples(names, st.binary(max_size=40), qualities, retained, labels), max_size=60),
    st.sampled_from([MQTT_3_1_1, MQTT_5]),
    st.lists(st.sampled_from(READERS), unique=True, max_size=2),
)
def test_a_chunk_of_many_names_reaches_log_and_readers_as_if_sent_one_by_one(
    house: Hosted,
    plan: list[tuple[str, bytes, int, bool, Properties]],
    version: int,
    kinds: list[tuple[str, int]],
) -> None:
    base = f"r{next(ROUNDS)}"
    sent: dict[str, list[Said]] = {topic: [] for topic in TOPICS}
    with ExitStack() as stack:

        def join(client_id: str, version: int) -> Wire:
            wire = stack.enter_context(Wire(house.port, f"{base}-{client_id}", version))
            wire.connect()
            return wire

        writer = join("writer", version)
        readers = []
        for kind, reader_version in kinds:
            is_own = kind == "own" and version == MQTT_5
            wire = writer if is_own else join(f"{kind}-{reader_version}", reader_version)
            readers.append(Reader(wire, kind if is_own or kind != "own" else "all", base))
        before = ends(house)
        blob = b""
        for name, payload, qos, retain, properties in plan:
            topic, _, leaf = name.partition("/")
            packet_id = writer.take_id() if qos else 0
            said = properties if version == MQTT_5 else NO_PROPERTIES
            full = f"{topic}/{base}/{leaf}"
            packet = Publish(full, payload, qos, retain, False, packet_id, said)
            blob += encode(packet, version)
            sent[topic].append((leaf, payload, said))
        marked = [
            Publish(f"{topic}/{base}/end", b"", 1, packet_id=writer.take_id()) for topic in TOPICS
        ]
        writer.send_bytes(blob + chunk(version, *marked))
        for packet in marked:
            writer.pick(Puback, packet.packet_id)
        for reader in readers:
            reader.check(sent)
        assert ends(house) == [
            end + len(sent[topic]) + 1 for end, topic in zip(before, TOPICS, strict=True)
        ]
        late = join("late", MQTT_5)
        late.subscribe_feed(*[f"{topic}/{base}/#" for topic in TOPICS], qos=1, from_="earliest")
        assert taken(late, base) == sent


def test_more_names_than_are_kept_at_hand_all_arrive(broker: Hosted, name: str) -> None:
    wanted = [f"{name}/{number}" for number in range(ROUTES_MAX * 2 + 10)]
    with Wire(broker.port, f"{name}-r") as reader, Wire(broker.port, name) as writer:
        reader.connect()
        writer.connect()
        reader.subscribe(f"{name}/#")
        writer.send_bytes(chunk(MQTT_3_1_1, *[Publish(one, b"x") for one in wanted]))
        assert [reader.receive().name for _ in wanted] == wanted


def test_a_reader_who_comes_between_two_chunks_has_the_second(broker: Hosted, name: str) -> None:
    pair = chunk(MQTT_3_1_1, *[Publish(f"{name}/{one}", b"x") for one in "ab"])
    with Wire(broker.port, f"{name}-r") as reader, Wire(broker.port, name) as writer:
        writer.connect()
        reader.connect()
        writer.send_bytes(pair)
        writer.settle()
        reader.subscribe(f"{name}/a", f"{name}/b")
        writer.send_bytes(pair)
        assert [reader.receive().name for _ in "ab"] == [f"{name}/a", f"{name}/b"]
        assert not reader.settle()


def test_a_name_too_deep_among_others_ends_the_connection_after_what_came_before(
    broker: Hosted, name: str
) -> None:
    deep = f"{name}/" + "/" * NAME_LEVELS_MAX
    sent = [f"{name}/a", f"{name}/b", deep, f"{name}/c"]
    with Wire(broker.port, f"{name}-r") as reader, Wire(broker.port, name) as writer:
        writer.connect()
        reader.connect()
        reader.subscribe(f"{name}/#")
        writer.send_bytes(chunk(MQTT_3_1_1, *[Publish(one, b"x") for one in sent]))
        assert writer.is_closed()
        assert [reader.receive().name for _ in "ab"] == sent[:2]
        assert not reader.settle()


def test_plain_ones_do_not_overtake_what_waits_for_its_commit(broker: Hosted, name: str) -> None:
    sent = [f"{name}/{one}" for one in "abc"]
    with Wire(broker.port, f"{name}-r") as reader, Wire(broker.port, name) as writer:
        writer.connect()
        reader.connect()
        reader.subscribe(f"{name}/#")
        first = Publish(sent[0], b"x", 1, packet_id=1)
        writer.send_bytes(chunk(MQTT_3_1_1, first, *[Publish(one, b"x") for one in sent[1:]]))
        assert [reader.receive().name for _ in sent] == sent


def test_a_client_has_none_of_its_own_back_that_it_does_not_want(broker: Hosted, name: str) -> None:
    with Wire(broker.port, name, MQTT_5) as writer:
        writer.connect()
        writer.subscribe(Subscription(f"{name}/#", no_local=True))
        writer.send_bytes(chunk(MQTT_5, *[Publish(f"{name}/{one}", b"x") for one in "abc"]))
        assert writer.settle() == []


def test_properties_of_one_among_plain_ones_stay_with_it(broker: Hosted, name: str) -> None:
    labelled = Properties(user_properties=(("k", "v"),))
    with (
        Wire(broker.port, f"{name}-r", MQTT_5) as reader,
        Wire(broker.port, name, MQTT_5) as writer,
    ):
        writer.connect()
        reader.connect()
        reader.subscribe_feed(f"{name}/#", qos=1, from_="latest")
        sent = [Publish(f"{name}/{one}", b"x") for one in "abc"]
        sent.insert(1, Publish(f"{name}/l", b"x", properties=labelled))
        sent.append(Publish(f"{name}/l", b"x", properties=labelled))
        writer.send_bytes(chunk(MQTT_5, *sent))
        stored = [reader.receive() for _ in sent]
        assert [one.name for one in stored] == [one.name for one in sent]
        labels = [("k", "v") in one.properties.user_properties for one in stored]
        assert labels == [False, True, False, False, True]


def test_one_too_large_among_plain_ones_ends_the_connection_after_those_before(
    tmp_path: Path,
) -> None:
    with (
        Hosted(tmp_path, log__payload_bytes_max=1000) as small,
        Wire(small.port, "r", MQTT_5) as reader,
        Wire(small.port, "w", MQTT_5) as writer,
    ):
        writer.connect()
        reader.connect()
        reader.subscribe("#")
        sizes = {"a": 5, "b": 5, "c": 1001, "d": 5}
        writer.send_bytes(
            chunk(MQTT_5, *[Publish(one, bytes(size)) for one, size in sizes.items()])
        )
        assert writer.expect(Disconnect).reason == Reason.PACKET_TOO_LARGE
        assert [reader.receive().name for _ in "ab"] == ["a", "b"]
        assert not reader.settle()


def test_a_name_that_may_not_be_published_is_left_out_of_a_mixed_run(
    broker: Hosted, name: str
) -> None:
    sent = [f"{name}/a", "$SYS/made-up", f"{name}/b"]
    refused = broker.dropped["not_authorized"]
    with Wire(broker.port, f"{name}-r") as reader, Wire(broker.port, name) as writer:
        writer.connect()
        reader.connect()
        reader.subscribe("#", "$SYS/made-up")
        writer.send_bytes(chunk(MQTT_3_1_1, *[Publish(one, b"x") for one in sent]))
        assert [reader.receive().name for _ in "ab"] == [sent[0], sent[2]]
        assert not reader.settle()
    assert broker.dropped["not_authorized"] == refused + 1
