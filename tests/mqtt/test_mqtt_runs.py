"""Are runs written in bulk the same bytes as their packets written one by one?"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.mqtt.encode import encode, property_section
from penstock.mqtt.kinds import PacketType, first_byte, publish_first_byte
from penstock.mqtt.packets import ACKS, Publish
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from penstock.mqtt.runs import (
    EncodedRun,
    alias_packets,
    encode_acks,
    encode_publish_run,
    put_packet_ids,
)
from penstock.mqtt.scanner import Chunk, scan
from tests.examples import examples
from tests.mqtt.strategies import NAMES, PACKET_IDS, VERSIONS

SIZES = st.lists(st.sampled_from([0, 3, 3, 3, 100, 150, 20_000]), min_size=1, max_size=12)
MODERN = Properties(content_type="json", user_properties=(("k", "v"),))


def source(sizes: list[int]) -> tuple[Chunk, list[bytes]]:
    payloads = [bytes((i,)) * size for i, size in enumerate(sizes)]
    raw = b"".join(encode(Publish("from", payload), 4) for payload in payloads)
    return scan(raw, 0, 4, 1 << 20), payloads


def encoded(
    chunk: Chunk, name: str, qos: int, retain: bool, version: int, first: int, end: int
) -> EncodedRun:
    return encode_publish_run(
        publish_first_byte(qos, retain),
        name.encode(),
        property_section(MODERN, PacketType.PUBLISH, version),
        chunk.data,
        chunk.payload_starts,
        chunk.payload_lengths,
        first,
        end,
    )


@examples(150)
@given(SIZES, NAMES, st.booleans(), VERSIONS, st.data())
def test_a_run_at_qos_0_is_its_packets(
    sizes: list[int], name: str, retain: bool, version: int, data: st.DataObject
) -> None:
    chunk, payloads = source(sizes)
    first = data.draw(st.integers(0, len(sizes) - 1))
    run = encoded(chunk, name, 0, retain, version, first, len(sizes))
    alone = [
        encode(Publish(name, payload, retain=retain, properties=MODERN), version)
        for payload in payloads[first:]
    ]
    assert run.raw == b"".join(alone)
    assert run.id_positions == []
    assert run.packet_bytes_max == max(map(len, alone))
    starts = [0, *run.packet_ends[:-1]]
    assert [run.raw[s:e] for s, e in zip(starts, run.packet_ends, strict=True)] == alone


@examples(150)
@given(SIZES, NAMES, st.sampled_from([1, 2]), VERSIONS, st.data())
def test_a_run_above_qos_0_takes_packet_ids_for_any_part_of_it(
    sizes: list[int], name: str, qos: int, version: int, data: st.DataObject
) -> None:
    chunk, payloads = source(sizes)
    run = encoded(chunk, name, qos, False, version, 0, len(sizes))
    first = data.draw(st.integers(0, len(sizes) - 1))
    ids = data.draw(st.lists(PACKET_IDS, max_size=len(sizes) - first))
    alone = [
        encode(Publish(name, payload, qos, packet_id=packet_id, properties=MODERN), version)
        for payload, packet_id in zip(payloads[first:], ids, strict=False)
    ]
    assert put_packet_ids(run, first, ids) == b"".join(alone)


def test_putting_packet_ids_leaves_the_run_as_it_was() -> None:
    chunk, _ = source([3, 3])
    run = encoded(chunk, "a", 1, False, 4, 0, 2)
    before = run.raw
    assert put_packet_ids(run, 0, [1, 2]) != put_packet_ids(run, 0, [3, 4])
    assert run.raw == before


def test_an_empty_run_is_no_bytes() -> None:
    chunk, _ = source([3])
    assert encoded(chunk, "a", 0, False, 5, 1, 1).raw == b""


@examples(50)
@given(st.lists(PACKET_IDS, max_size=20), st.sampled_from(list(ACKS)), VERSIONS)
def test_a_run_of_acks_is_its_packets(
    ids: list[int], packet_type: PacketType, version: int
) -> None:
    alone = b"".join(encode(ACKS[packet_type](packet_id), version) for packet_id in ids)
    assert encode_acks(first_byte(packet_type), ids) == alone


def test_packet_id_0_is_never_written() -> None:
    chunk, _ = source([3])
    with pytest.raises(AssertionError):
        encode_acks(first_byte(PacketType.PUBACK), [1, 0])
    with pytest.raises(AssertionError):
        put_packet_ids(encoded(chunk, "a", 1, False, 4, 0, 1), 0, [0])


def test_a_section_before_mqtt_5_is_nothing() -> None:
    assert property_section(MODERN, PacketType.PUBLISH, 4) == b""
    assert property_section(NO_PROPERTIES, PacketType.PUBLISH, 5) == b"\0"


@examples(150)
@given(SIZES, NAMES, st.integers(0, 2), st.integers(1, 65_535), st.booleans(), st.data())
def test_packets_with_an_alias_say_the_same_without_the_name(
    sizes: list[int], name: str, qos: int, alias: int, teaches: bool, data: st.DataObject
) -> None:
    """Properties of 0, 120, 124, 125 and 200 bytes: also where the lengths grow by a byte."""
    room = data.draw(st.sampled_from([0, 115, 119, 120, 121, 122, 200]))
    pairs = (("k", "v" * room),) if room else ()
    plain = [
        Publish(name, bytes(size), qos, packet_id=7 if qos else 0, properties=Properties())
        for size in sizes
    ]
    before = Properties(user_properties=pairs)
    after = Properties(topic_alias=alias, user_properties=pairs)
    raw = b"".join(encode(replace(one, properties=before), 5) for one in plain)
    wanted = [replace(one, name="", properties=after) for one in plain]
    if teaches:
        wanted[0] = replace(wanted[0], name=name)
    assert alias_packets(raw, alias, teaches) == b"".join(encode(one, 5) for one in wanted)
