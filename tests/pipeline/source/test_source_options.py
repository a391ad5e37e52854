"""Does every option do what it says, and does every bad value say what is wrong with it?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from penstock import Broker
from penstock.model.errors import RefusedError
from penstock.pipeline.source.options import OPTIONS
from penstock.pipeline.source.source import SCHEMA, PenstockSource
from tests.doors.hosted import Hosted
from tests.pipeline.source.reading import At, offsets, only, payloads, ranges, reader_of, rows

pytestmark = pytest.mark.over_a_second  # a log is filled for each

DOCUMENTED = [
    "topic",
    "subscribe",
    "names",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "finishWindows",
    "minPartitions",
    "failOnDataLoss",
    "where",
    "path",
    "url",
    "user",
    "password",
    "token",
    "tenant",
    "idempotencyKey",
    "idempotencyNumber",
    "checkpointLocation",
    "queryName",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    with Broker(path) as broker:
        broker.create_topic("Orders")
        broker.create_topic("sensors")
        broker.create_topic("empty")
        for number in range(10):
            broker.publish({"n": number}, "orders", name=f"orders/{number % 2}")
        for number in range(6):
            broker.publish(f"s{number}", "sensors", name=f"sensors/{number % 3}/temp")
    return path


@pytest.fixture(scope="module")
def address(directory: Path) -> Iterator[str]:
    with Hosted(directory) as hosted:
        yield f"http://127.0.0.1:{hosted.ports['http']}"


@pytest.fixture(scope="module", params=["path", pytest.param("url", marks=pytest.mark.slow)])
def data(request: pytest.FixtureRequest, directory: Path) -> At:
    """The same topics, in files and at a broker's address."""
    if request.param == "path":
        return directory
    address: str = request.getfixturevalue("address")
    return address


def times(path: At, topic: str) -> list[int]:
    stamps = [row["timestamp"] for row in rows(path, topic=topic)]
    epoch = stamps[0].replace(year=1970, month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    return [(stamp - epoch) // timedelta(microseconds=1) for stamp in stamps]


def test_the_list_of_options_is_the_documented_one() -> None:
    assert sorted(OPTIONS) == sorted(DOCUMENTED)


def test_a_topic_is_found_in_any_letter_case_and_keeps_its_declared_spelling(data: At) -> None:
    found = rows(data, topic="ORDERS")
    assert {row["topic"] for row in found} == {"Orders"}
    assert [row["offset"] for row in found] == list(range(10))
    assert found[3]["payload"] == b'{"n":3}'
    assert found[3]["name"] == "orders/1"
    assert found[3]["partition"] == 0


def test_options_are_known_in_any_letter_case(data: At) -> None:
    assert offsets(data, TOPIC="orders", STARTINGOFFSETS="8") == [8, 9]


def test_subscribe_means_topic(data: At) -> None:
    assert offsets(data, subscribe="orders") == list(range(10))


def test_several_topics_are_read_at_once_each_once(data: At) -> None:
    found = rows(data, only("topic", "offset"), topic=" orders, sensors ,ORDERS")
    assert sorted((row["topic"], row["offset"]) for row in found) == [
        *(("Orders", number) for number in range(10)),
        *(("sensors", number) for number in range(6)),
    ]


@pytest.mark.slow
def test_a_topic_with_any_name_is_read_by_a_list_in_json(tmp_path: Path) -> None:
    names = ["a,b", " x ", 'say "no"', "[q", "[]", '["p"]', "plain"]
    with Broker(tmp_path) as broker:
        for name in names:
            broker.create_topic(name)
            broker.publish(name, name)
    with Hosted(tmp_path) as hosted:
        for at in (tmp_path, f"http://127.0.0.1:{hosted.ports['http']}"):
            for name in names:
                assert payloads(at, topic=json.dumps([name])) == [name.encode()]
            assert len(payloads(at, topic=json.dumps(names))) == len(names)
            for name in ("[q", "[]"):  # no list of names
                assert payloads(at, topic=name) == [name.encode()]
            assert len(payloads(at, topic=" plain ,[q")) == 2


def test_names_filters_one_topic(data: At) -> None:
    assert offsets(data, topic="orders", names="orders/1") == [1, 3, 5, 7, 9]


def test_names_without_a_topic_reads_all_topics(data: At) -> None:
    found = rows(data, only("topic", "name"), names="+/0/#")
    assert {row["name"] for row in found} == {"orders/0", "sensors/0/temp"}
    assert len(found) == 5 + 2


def test_where_keeps_what_passes(data: At) -> None:
    assert offsets(data, topic="orders", where="payload.n BETWEEN 3 AND 5") == [3, 4, 5]


def test_where_and_names_both_count(data: At) -> None:
    chosen = offsets(data, topic="orders", names="orders/1", where="payload.n >= 5")
    assert chosen == [5, 7, 9]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", "latest", range(10)),
        ("3", "latest", range(3, 10)),
        ("earliest", "4", range(4)),
        ("3", "7", range(3, 7)),
        ("10", "latest", range(0)),
        ("7", "3", range(0)),
        ('{"orders":{"0":3}}', '{"ORDERS":{"0":7}}', range(3, 7)),
        ('{"orders":{"0":-2}}', '{"orders":{"0":-1}}', range(10)),
    ],
)
def test_offsets_bound_what_is_read(data: At, start: str, end: str, expected: range) -> None:
    found = offsets(data, topic="orders", startingOffsets=start, endingOffsets=end)
    assert found == list(expected)


def test_offsets_in_json_bound_several_topics(data: At) -> None:
    found = rows(
        data,
        only("topic", "offset"),
        topic="orders,sensors",
        startingOffsets='{"orders":{"0":8},"sensors":{"0":-2}}',
        endingOffsets='{"orders":{"0":-1},"sensors":{"0":2}}',
    )
    assert sorted((row["topic"], row["offset"]) for row in found) == [
        ("Orders", 8),
        ("Orders", 9),
        ("sensors", 0),
        ("sensors", 1),
    ]


def test_times_bound_what_is_read(data: At) -> None:
    stamps = times(data, "orders")
    at = f"1970-01-01T00:00:00.{0:06d}Z"
    assert offsets(data, topic="orders", startingTimestamp=at) == list(range(10))
    assert offsets(data, topic="orders", endingTimestamp=at) == []
    assert offsets(data, topic="orders", startingTimestamp="-1h") == list(range(10))
    for far in ("32503680000000", "300000000000000", "99999999999999999"):
        assert offsets(data, topic="orders", startingTimestamp=far) == []
    before = sum(stamp < stamps[0] // 1000 * 1000 + 1000 for stamp in stamps)
    assert offsets(data, topic="orders", startingTimestamp=str(stamps[0] // 1000 + 1)) == list(
        range(before, 10)
    )


def test_min_partitions_cuts_a_topic_into_that_many_pieces(data: At) -> None:
    pieces = ranges(reader_of(data, topic="orders", minPartitions="4").partitions())
    assert len(pieces) == 4
    assert [start for _, start, _ in pieces] == [0, *(end for _, _, end in pieces[:-1])]
    assert offsets(data, topic="orders", minPartitions="4") == list(range(10))


def test_min_partitions_beyond_the_records_gives_one_record_each(data: At) -> None:
    pieces = ranges(reader_of(data, topic="sensors", minPartitions="50").partitions())
    assert pieces == [("sensors", number, number + 1) for number in range(6)]


def test_an_empty_topic_is_an_empty_table(data: At) -> None:
    assert rows(data, topic="empty") == []


def test_a_given_schema_picks_columns_in_its_order(data: At) -> None:
    found = rows(data, only("payload", "offset"), topic="sensors", endingOffsets="1")
    assert found == [{"payload": b"s0", "offset": 0}]
    assert list(found[0]) == ["payload", "offset"]


def test_a_path_may_be_written_as_a_file_url(directory: Path) -> None:
    source = PenstockSource({"path": f"file://{directory}", "topic": "sensors"})
    assert ranges(source.reader(SCHEMA).partitions()) == [("sensors", 0, 6)]


def test_payloads_come_as_they_were_published(data: At) -> None:
    assert payloads(data, topic="sensors") == [b"s%d" % number for number in range(6)]


BAD = [
    (
        {"startingOffset": "3"},
        "option 'startingOffset' is unknown: did you mean 'startingOffsets'?",
    ),
    ({"kafka.bootstrap.servers": "x"}, "option 'kafka.bootstrap.servers' is unknown: known are"),
    ({"subscribe": "orders"}, "options 'topic' and 'subscribe' mean the same: give one of them"),
    ({"topic": "or/ders"}, "topic name 'or/ders' contains '/'"),
    ({"topic": "orders,,sensors"}, "topic name '' is empty"),
    ({"topic": "ordres"}, "topic 'ordres' is not declared in .*: did you mean 'Orders'"),
    ({"topic": "zzz"}, "the topics are Orders, empty, sensors"),
    ({"names": "a/#/b"}, "names: filter 'a/#/b' has a level after '#'"),
    ({"startingOffsets": "-3"}, "position '-3' is negative"),
    ({"startingOffsets": "soon"}, "position 'soon' is not a position"),
    ({"startingOffsets": "-24h"}, "startingOffsets '-24h' is a time: give it as 'startingTime"),
    ({"startingOffsets": "latest"}, "startingOffsets 'latest' leaves nothing to read in a batch"),
    ({"startingOffsets": "11"}, "startingOffsets: offset 11 is beyond the end.*from 0 to 10"),
    ({"endingOffsets": "11"}, "endingOffsets: offset 11 is beyond the end.*from 0 to 10"),
    ({"endingOffsets": "earliest"}, "endingOffsets 'earliest' leaves nothing to read"),
    ({"topic": "orders,sensors", "startingOffsets": "3"}, r'give JSON such as {"orders":{"0":3}}'),
    ({"startingOffsets": "{"}, "startingOffsets '{' is not JSON"),
    ({"startingOffsets": "{}"}, "startingOffsets '{}' names no topic"),
    ({"startingOffsets": '{"orders":3}'}, "topic 'orders' needs an offset for partition '0'"),
    ({"startingOffsets": '{"orders":{"0":3,"1":4}}'}, "topic 'orders' has no partition 1"),
    ({"startingOffsets": '{"orders":{"0":3.5}}'}, "3.5 is not an offset"),
    ({"startingOffsets": '{"orders":{"0":true}}'}, "True is not an offset|is not an offset"),
    ({"startingOffsets": '{"sensors":{"0":3}}'}, "names topic 'sensors', which this query does no"),
    (
        {"topic": "orders,sensors", "startingOffsets": '{"orders":{"0":3}}'},
        "startingOffsets has no offset for topic 'sensors'",
    ),
    (
        {"startingOffsets": "1", "startingTimestamp": "0"},
        "options 'startingOffsets' and 'startingTimestamp' cannot be combined",
    ),
    ({"startingTimestamp": "yesterday"}, "startingTimestamp: position 'yesterday'"),
    ({"startingTimestamp": "latest"}, "startingTimestamp: 'latest' is not a time"),
    ({"endingTimestamp": "2026-01-01T00:00:00"}, "has no time zone"),
    ({"minPartitions": "0"}, "minPartitions: '0' is not a whole number above 0"),
    ({"minPartitions": "many"}, "minPartitions: 'many' is not a whole number above 0"),
    ({"maxOffsetsPerTrigger": "5"}, "'maxOffsetsPerTrigger' cannot be used with a batch read"),
    ({"idempotencyKey": "k"}, "'idempotencyKey' cannot be used with a batch read"),
    ({"failOnDataLoss": "perhaps"}, "failOnDataLoss 'perhaps' is neither true nor false"),
    ({"where": "payload.n >"}, "where: .*column"),
    ({"where": "drop table x"}, "where: "),
    ({"url": "http://127.0.0.1:8090"}, "options 'path' and 'url' cannot be combined"),
    ({"user": "u"}, "option 'user' can only be used with 'url'"),
    ({"path": ""}, "path '' is not a directory on this machine"),
    ({"path": "hdfs://there/data"}, "path 'hdfs://there/data' is not a directory on this machine"),
    ({"path": "/nowhere/at/all"}, "path '/nowhere/at/all' is not a directory"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(bad) for bad, _ in BAD])
def test_a_bad_option_is_refused_with_the_way_out(
    directory: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        source = PenstockSource({"path": str(directory), "topic": "orders", **options})
        source.reader(SCHEMA).partitions()


BAD_REMOTE = [
    ({"topic": "ordres"}, "topic 'ordres' is not declared by the broker: did you mean 'Orders'"),
    ({"startingOffsets": "11"}, "startingOffsets: offset 11 is beyond the end.*from 0 to 10"),
    ({"url": "127.0.0.1:8090"}, "url '127.0.0.1:8090' is not a valid broker URL: write http://"),
    ({"url": "mqtt://127.0.0.1:1883"}, "is not a valid broker URL"),
    ({"user": "u"}, "options 'user' and 'password' go together"),
    ({"user": "u", "password": "p", "token": "t"}, "options 'token' and 'user' cannot be combined"),
    ({"where": "payload.n >"}, "where: .*column"),
]


@pytest.mark.parametrize(
    ("options", "message"), BAD_REMOTE, ids=[str(bad) for bad, _ in BAD_REMOTE]
)
def test_a_bad_option_beside_an_address_is_refused_with_the_way_out(
    address: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        source = PenstockSource({"url": address, "topic": "orders", **options})
        source.reader(SCHEMA).partitions()


def test_a_query_that_names_neither_topic_nor_names_is_refused(data: At) -> None:
    with pytest.raises(RefusedError, match="option 'topic' is missing"):
        reader_of(data)


def test_a_query_that_says_nowhere_is_refused() -> None:
    with pytest.raises(RefusedError, match="neither 'path' nor 'url' is given"):
        PenstockSource({"topic": "orders"}).reader(SCHEMA)


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        ("value", "binary", "column 'value' is unknown: did you mean 'payload'?"),
        ("nmae", "string", "column 'nmae' is unknown: did you mean 'name'?"),
        ("zzz", "string", "column 'zzz' is unknown: columns are topic, partition"),
        ("offset", "int", "column 'offset' is bigint, not int: cast it after reading"),
    ],
)
def test_a_schema_with_a_strange_column_is_refused(
    data: At, column: str, kind: str, message: str
) -> None:
    types = {"binary": BinaryType(), "string": StringType(), "int": IntegerType()}
    with pytest.raises(RefusedError, match=re.escape(message)):
        reader_of(data, StructType([StructField(column, types[kind])]), topic="orders")
