"""Does a broker that opens a directory finish what was handed over before a crash?"""

from __future__ import annotations

from pathlib import Path

from penstock import Broker
from penstock.log.staging.area import AREA, Manifest, StagingArea
from tests.log.staging.test_intake import QUERY, left_over, stage


def test_what_was_handed_over_before_a_crash_is_in_the_topic_after_the_next_start(
    tmp_path: Path,
) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish("before", "t")
    area = StagingArea(tmp_path)
    area.decide(Manifest(QUERY, 0, [stage(area, [[b"a"], [b"b"]])], {1: 1}))
    for _ in range(2):
        with Broker(tmp_path) as broker:
            assert [record.payload for record in broker.read("t")] == [b"before", b"a", b"b"]
    assert left_over(tmp_path) == ["done.json"]


def test_staged_files_that_are_damaged_keep_no_broker_from_starting(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
    area = StagingArea(tmp_path)
    file = stage(area, [[b"a"]])
    area.decide(Manifest(QUERY, 0, [file], {1: 0}))
    (path,) = (tmp_path / AREA).rglob(file.name)
    whole = path.read_bytes()
    path.write_bytes(b"damaged")
    with Broker(tmp_path) as broker:
        assert "staged records are still waiting" in " ".join(broker.notes)
        broker.publish("works", "t")
    path.write_bytes(whole)
    with Broker(tmp_path) as broker:
        assert "1 staged records were stored" in broker.notes
        assert [record.payload for record in broker.read("t")] == [b"works", b"a"]
