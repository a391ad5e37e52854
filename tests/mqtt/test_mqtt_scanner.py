"""Does the scanner see exactly the packets that are there, in runs, however the bytes are cut?"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import PeerError
from penstock.mqtt.decode import decode_packet
from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1, Role
from penstock.mqtt.packets import (
    Connect,
    Packet,
    Pingreq,
    Puback,
    Publish,
    Pubrec,
    Subscribe,
    Subscription,
)
from penstock.mqtt.primitives import read_varint
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from penstock.mqtt.scanner import AckRun, Chunk, Intake, PacketSpan, PublishRun, scan
from penstock.mqtt.unpacking import unpack
from tests.examples import examples
from tests.mqtt.strategies import SENDERS, VERSIONS, acks, packets, publishes

LARGE = 1 << 20
MODERN = Properties(content_type="json", user_properties=(("k", "v"),))


def stream(version: int, *found: Packet) -> bytes:
    return b"".join(encode(packet, version) for packet in found)


def scanned(version: int, *found: Packet) -> Chunk:
    chunk = scan(stream(version, *found), 0, version, LARGE)
    assert chunk.violation is None and chunk.wanted == 0
    assert chunk.consumed == len(chunk.data)
    assert list(unpack(chunk)) == list(found)
    return chunk


def only_run(chunk: Chunk) -> PublishRun:
    (run,) = chunk.items
    assert isinstance(run, PublishRun)
    return run


def shape(chunk: Chunk) -> list[str | int]:
    """Lengths of publish runs, `acks n`, or `packet`, item by item."""
    found: list[str | int] = []
    for item in chunk.items:
        if isinstance(item, PublishRun):
            found.append(item.count)
        elif isinstance(item, AckRun):
            found.append(f"acks {item.end_id - item.first_id}")
        else:
            found.append("packet")
    return found


# --- runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_under_one_name_are_one_run_whatever_their_sizes(version: int, qos: int) -> None:
    sizes = (5, 5, 5, 0, 100, 100, 130, 20_000, 3, 3)
    chunk = scanned(
        version,
        *(
            Publish("a/b", bytes(size), qos, packet_id=700 + i if qos else 0)
            for i, size in enumerate(sizes)
        ),
    )
    run = only_run(chunk)
    assert (run.count, run.name, run.qos, run.retain, run.dup) == (10, b"a/b", qos, False, False)
    assert (run.start, run.end) == (0, len(chunk.data))
    assert chunk.payload_lengths == list(sizes)
    assert chunk.packet_ids == ([700 + i for i in range(10)] if qos else [])
    assert run.packet_bytes_max == len(
        encode(Publish("a/b", bytes(20_000), qos, packet_id=bool(qos)), version)
    )


def test_a_message_ends_where_its_payload_ends() -> None:
    chunk = scanned(4, *(Publish("a/b", bytes(size)) for size in (4, 4, 9)))
    ends = [s + n for s, n in zip(chunk.payload_starts, chunk.payload_lengths, strict=True)]
    starts = [0, *ends[:-1]]
    for start, end in zip(starts, ends, strict=True):
        assert list(unpack(scan(chunk.data[start:end], 0, 4, LARGE)))
    assert ends[-1] == len(chunk.data)


def test_another_name_begins_another_run() -> None:
    names = ["a", "a", "b", "a", "aa", "aa"]
    chunk = scanned(4, *(Publish(name, b"x") for name in names))
    assert shape(chunk) == [2, 1, 1, 2]
    assert [item.first_message for item in chunk.items if isinstance(item, PublishRun)] == [
        0,
        2,
        3,
        4,
    ]


def test_another_qos_retain_or_dup_begins_another_run() -> None:
    chunk = scanned(
        4,
        Publish("a", b"x"),
        Publish("a", b"x", retain=True),
        Publish("a", b"x", 1, packet_id=1),
        Publish("a", b"x", 1, packet_id=2, dup=True),
        Publish("a", b"x", 2, packet_id=3, dup=True),
        Publish("a", b"x", 2, packet_id=4, dup=True),
    )
    assert shape(chunk) == [1, 1, 1, 1, 2]
    last = chunk.items[-1]
    assert isinstance(last, PublishRun)
    assert (last.qos, last.retain, last.dup) == (2, False, True)
    assert chunk.packet_ids[last.first_id : last.first_id + last.count] == [3, 4]


@pytest.mark.parametrize("qos", [0, 1])
def test_the_same_properties_stay_in_the_run_and_others_begin_another(qos: int) -> None:
    def message(properties: Properties, packet_id: int, size: int = 3) -> Publish:
        return Publish("a", bytes(size), qos, packet_id=packet_id * qos, properties=properties)

    other = Properties(content_type="text", user_properties=(("k", "v"),))  # as many bytes
    chunk = scanned(
        5,
        message(MODERN, 1),
        message(MODERN, 2),
        message(MODERN, 3, size=200),
        message(other, 4, size=200),
        message(Properties(), 5),
        message(MODERN, 6),
    )
    assert shape(chunk) == [3, 1, 1, 1]
    runs = [item for item in chunk.items if isinstance(item, PublishRun)]
    assert [run.properties for run in runs] == [MODERN, other, Properties(), MODERN]
    assert runs[0].property_bytes and not runs[2].property_bytes


def test_a_name_and_a_packet_id_that_look_alike_are_not_mixed_up() -> None:
    # The same bytes in the same places, but the border between name and payload differs.
    chunk = scanned(4, Publish("ab", b"cd"), Publish("abc", b"d"), Publish("a", b"bcd"))
    assert shape(chunk) == [1, 1, 1]


def test_a_message_by_alias_alone_is_a_run_of_its_own() -> None:
    chunk = scanned(
        5,
        Publish("a", b"1", properties=Properties(topic_alias=1)),
        Publish("", b"2", properties=Properties(topic_alias=1)),
        Publish("", b"3", properties=Properties(topic_alias=1)),
        Publish("", b"4", properties=Properties(topic_alias=2)),
    )
    assert shape(chunk) == [1, 2, 1]


def test_plain_acks_of_one_type_are_one_run() -> None:
    chunk = scanned(4, Puback(1), Puback(2), Puback(65535), Pubrec(4), Puback(5))
    assert shape(chunk) == ["acks 3", "acks 1", "acks 1"]
    assert chunk.packet_ids == [1, 2, 65535, 4, 5]


def test_acks_with_a_reason_and_all_other_packets_stand_alone() -> None:
    chunk = scanned(
        5,
        Puback(1),
        Puback(2, Reason.QUOTA_EXCEEDED),
        Puback(3),
        Pingreq(),
        Subscribe(4, (Subscription("a"),)),
        Publish("a", b""),
    )
    assert shape(chunk) == ["acks 1", "packet", "acks 1", "packet", "packet", 1]


def test_items_cover_what_is_consumed_without_a_gap() -> None:
    chunk = scanned(
        5, Publish("a", b"1"), Publish("b", b"2"), Puback(1), Puback(2), Pingreq(), Puback(3)
    )
    edges = [0, *(item.end for item in chunk.items)]
    assert edges == [*(item.start for item in chunk.items), chunk.consumed]


def test_scanning_starts_where_it_is_told() -> None:
    raw = stream(4, Publish("a", b"1"), Publish("a", b"2"))
    chunk = scan(raw, len(raw) // 2, 4, LARGE)
    assert list(unpack(chunk)) == [Publish("a", b"2")]
    assert chunk.consumed == len(raw)


# --- before CONNECT ---------------------------------------------------------------------------


def test_before_the_version_is_known_one_packet_is_taken() -> None:
    connect = Connect("c", version=4)
    behind: list[Packet] = [Publish("a", b"1"), Pingreq()]
    intake = Intake(0, LARGE)
    assert list(unpack(intake.feed(encode(connect, 4) + stream(4, *behind)))) == [connect]
    intake.version = 4
    assert list(unpack(intake.feed(b""))) == behind
    assert intake.held_bytes == 0


# --- refusals ---------------------------------------------------------------------------------


def refused(raw: bytes, version: int = 4, packet_bytes_max: int = LARGE) -> Chunk:
    chunk = scan(raw, 0, version, packet_bytes_max)
    assert chunk.violation is not None
    return chunk


def test_what_stands_before_a_violation_is_kept() -> None:
    good = stream(4, Publish("a", b"1"), Publish("a", b"2"), Puback(1))
    for bad in (
        "36 00",  # QoS 3
        "30 05 0003 612f23",  # a wildcard
        "32 07 0003 612f62 0000",  # packet id 0
        "40 02 0000",
        "00 00",
        "30 8000",  # padded length
    ):
        chunk = refused(good + bytes.fromhex(bad) + good)
        assert chunk.consumed == len(good)
        assert shape(chunk) == [2, "acks 1"]
        assert chunk.payload_starts == [5, 11]
        assert chunk.packet_ids == [1]


@pytest.mark.parametrize("version", [4, 5])
def test_a_packet_id_of_zero_inside_a_run_ends_it_before_that_message(version: int) -> None:
    raw = bytearray(stream(version, *(Publish("a", b"x", 1, packet_id=i) for i in (1, 2, 3))))
    size = len(raw) // 3
    raw[size + 5 : size + 7] = b"\0\0"
    chunk = refused(bytes(raw), version)
    assert shape(chunk) == [1]
    assert chunk.packet_ids == [1] and chunk.consumed == size
    assert chunk.violation is not None and chunk.violation.reason == Reason.PROTOCOL_ERROR


def test_a_packet_id_of_zero_inside_a_run_of_acks_ends_it_before_that_ack() -> None:
    chunk = refused(bytes.fromhex("40020001 40020000 40020002"))
    assert shape(chunk) == ["acks 1"] and chunk.consumed == 4


@pytest.mark.parametrize("kind", [0x10, 0x30, 0x82, 0xC0, 0x40])
def test_a_fifth_length_byte_is_refused(kind: int) -> None:
    for raw in (bytes((kind,)) + b"\xff\xff\xff\xff\x01", bytes((kind,)) + b"\x80\x80\x80\x80"):
        chunk = refused(raw)
        assert chunk.violation is not None
        assert chunk.violation.reason == Reason.MALFORMED_PACKET


@pytest.mark.parametrize("raw", ["c0 8000", "30 8700 0003 612f62 6869", "40 8200 0001"])
def test_a_length_in_more_bytes_than_it_needs_is_refused(raw: str) -> None:
    chunk = refused(bytes.fromhex(raw))
    assert chunk.violation is not None
    assert chunk.violation.clause == "MQTT-1.5.5-1"


def test_a_packet_may_be_as_large_as_allowed_and_no_larger() -> None:
    for packet in (Publish("a", bytes(300)), Subscribe(1, (Subscription("f" * 300),))):
        raw = encode(packet, 4)
        assert list(unpack(scan(raw, 0, 4, len(raw)))) == [packet]
        chunk = refused(raw, packet_bytes_max=len(raw) - 1)
        assert chunk.violation is not None
        assert chunk.violation.reason == Reason.PACKET_TOO_LARGE
        early = refused(raw[:3], packet_bytes_max=len(raw) - 1)  # its length is enough to know
        assert early.violation is not None
        assert early.violation.reason == Reason.PACKET_TOO_LARGE


def test_a_message_grown_too_large_inside_a_run_ends_the_run() -> None:
    raw = stream(4, Publish("a", bytes(5)), Publish("a", bytes(5)), Publish("a", bytes(6)))
    chunk = refused(raw, packet_bytes_max=10)
    assert shape(chunk) == [2]
    assert chunk.violation is not None and chunk.violation.reason == Reason.PACKET_TOO_LARGE


def test_a_byte_that_begins_no_packet_is_refused_without_waiting_for_the_rest() -> None:
    assert refused(b"\x00\xff").violation is not None
    assert refused(b"\xf0").violation is not None
    assert refused(b"\x16\x03", version=0).violation is not None


# --- what is left over ------------------------------------------------------------------------


def test_an_incomplete_packet_says_how_many_bytes_it_wants() -> None:
    whole = encode(Publish("a", b"1"), 4)
    part = encode(Publish("a", bytes(500)), 4)
    for kept, wanted in ((1, 2), (2, 3), (3, len(part)), (100, len(part)), (len(part), 0)):
        chunk = scan(whole + part[:kept], 0, 4, LARGE)
        assert chunk.wanted == wanted
        assert chunk.consumed == len(whole) + (0 if wanted else len(part))


def test_a_large_packet_in_many_pieces_is_joined_once_it_is_whole() -> None:
    packet = Publish("a", bytes(range(256)) * 4000)
    raw = encode(packet, 4)
    intake = Intake(4, 2 << 20)
    scans = 0
    found: list[Packet] = []
    for start in range(0, len(raw), 1000):
        chunk = intake.feed(raw[start : start + 1000])
        scans += bool(chunk.data)
        found += unpack(chunk)
    assert found == [packet]
    assert scans == 2  # the first piece, and the whole
    assert intake.held_bytes == 0


def test_what_is_held_is_bounded_by_the_packet_size() -> None:
    intake = Intake(4, 1000)
    raw = encode(Publish("a", bytes(990)), 4)
    for start in range(0, len(raw) * 5 - 1, 7):
        intake.feed((raw * 5)[start : start + 7])
        assert intake.held_bytes <= 1000


# --- the scanner against packet-by-packet decoding -------------------------------------------


def one_by_one(raw: bytes, version: int, sender: Role) -> tuple[list[Packet], Reason | None]:
    """The slow model: a packet at a time, as the specification reads."""
    found: list[Packet] = []
    pos = 0
    try:
        while pos < len(raw):
            length, body = read_varint(raw, pos + 1, len(raw))
            found.append(decode_packet(raw[pos], raw[body : body + length], version, sender))
            pos = body + length
    except PeerError as error:
        return found, getattr(error, "reason", None)
    return found, None


def pieces(raw: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    for start, end in pairwise(edges):
        yield raw[start:end]


def in_pieces(
    raw: bytes, cuts: list[int], version: int, sender: Role
) -> tuple[list[Packet], Reason | None]:
    intake = Intake(version, LARGE, sender)
    found: list[Packet] = []
    try:
        for piece in pieces(raw, cuts):
            for packet in unpack(intake.feed(piece)):
                found.append(packet)  # one at a time: those before a violation count
    except PeerError as error:
        return found, getattr(error, "reason", None)
    assert intake.held_bytes == 0
    return found, None


@st.composite
def traffic(draw: st.DrawFn, version: int, sender: Role) -> list[Packet]:
    """Packets with stretches that repeat, so that there are runs."""
    found: list[Packet] = []
    for _ in range(draw(st.integers(1, 6))):
        packet = draw(
            st.one_of(packets(version, sender), publishes(version, sender), acks(version, sender))
        )
        found += [packet] * draw(st.sampled_from([1, 1, 2, 5]))
        if isinstance(packet, Publish):
            longer = Publish(
                packet.name,
                packet.payload + bytes(draw(st.integers(0, 40))),
                packet.qos,
                packet.retain,
                packet.dup,
                packet.packet_id,
                packet.properties,
            )
            found += [longer] * draw(st.integers(0, 2))
    return found


@examples(400)
@given(st.data(), VERSIONS, SENDERS)
def test_a_stream_cut_anywhere_is_read_like_its_packets_one_by_one(
    data: st.DataObject, version: int, sender: Role
) -> None:
    sent = data.draw(traffic(version, sender))
    raw = stream(version, *sent)
    cuts = data.draw(st.lists(st.integers(0, 1 << 16), max_size=6))
    assert in_pieces(raw, cuts, version, sender) == (sent, None)


@examples(400)
@given(st.data(), VERSIONS, SENDERS)
def test_a_damaged_stream_is_refused_at_the_same_packet_for_the_same_reason(
    data: st.DataObject, version: int, sender: Role
) -> None:
    sent = data.draw(traffic(version, sender))
    damaged = bytearray()
    for packet in sent:
        raw = bytearray(encode(packet, version))
        length, body = read_varint(bytes(raw), 1, len(raw))
        if length and data.draw(st.integers(0, 3)) == 0:  # the header stays: boundaries hold
            raw[data.draw(st.integers(body, len(raw) - 1))] = data.draw(st.integers(0, 255))
        damaged += raw
    cuts = data.draw(st.lists(st.integers(0, 1 << 16), max_size=4))
    expected = one_by_one(bytes(damaged), version, sender)
    assert in_pieces(bytes(damaged), cuts, version, sender) == expected


def test_spans_give_the_decoder_what_it_needs() -> None:
    packet = Subscribe(4, (Subscription("f" * 200, 1),))
    chunk = scanned(4, Pingreq(), packet)
    span = chunk.items[1]
    assert isinstance(span, PacketSpan)
    assert decode_packet(span.first_byte, chunk.data[span.body : span.end], 4) == packet


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 5_000])
def test_a_packet_that_comes_in_crumbs_takes_the_memory_of_its_bytes(size: int) -> None:
    data = encode(Publish("a", bytes(1 << 20), 0), MQTT_3_1_1)
    intake = Intake(MQTT_3_1_1, 1 << 24)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    tracemalloc.start()
    try:
        for piece in pieces[:-1]:
            assert not intake.feed(bytes(bytearray(piece))).items
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 * len(data)
    (packet,) = unpack(intake.feed(pieces[-1]))
    assert packet == Publish("a", bytes(1 << 20), 0)
