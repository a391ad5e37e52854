"""Do the temporary files of tables hold what the log holds now?"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from penstock import Broker
from penstock.log.arrow.columns import schema_of
from penstock.pipeline.source.directory import DirectoryOrigin
from penstock.pipeline.source.plan import range_of
from penstock.pipeline.tables.tail import tail_file

COLUMNS = schema_of(["offset", "payload"])


def tail_of(data: Path) -> Path:
    origin = DirectoryOrigin(data)
    (state,) = origin.states(("t",))
    return tail_file(origin, range_of(state, state.first, state.end), COLUMNS)


def payloads(file: Path) -> list[bytes]:
    return pq.read_table(file).column("payload").to_pylist()


def test_the_same_offsets_of_another_directory_have_a_file_of_their_own(tmp_path: Path) -> None:
    for name in ("here", "there"):
        with Broker(tmp_path / name) as broker:
            broker.create_topic("t")
            broker.publish(name, "t")
    assert [payloads(tail_of(tmp_path / name)) for name in ("here", "there")] == [
        [b"here"],
        [b"there"],
    ]


def test_a_file_is_used_again_until_records_are_erased(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish("alice", "t", name="t/alice")
        broker.publish("bob", "t", name="t/bob")
        before = tail_of(tmp_path)
        assert payloads(before) == [b"alice", b"bob"]
        assert tail_of(tmp_path) == before
        broker.erase("t/alice", "t")
        assert payloads(tail_of(tmp_path)) == [b"", b"bob"]
