"""Is everything that is wrong with a pipeline's file said, with its line and the way out?

Each file of tests/data/pipelines/dry stands beside what is said about it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model.errors import InvalidPipeline
from penstock.pipeline.declared.problems import Problems
from penstock.pipeline.declared.reading import FILE_BYTES_MAX, read_declaration

FILES = sorted((Path(__file__).parents[2] / "data" / "pipelines" / "dry").glob("*.toml"))


def said_about(file: Path) -> str:
    try:
        declared = read_declaration(file)
        # Told last, when Spark has found nothing else.
        problems = Problems(file, declared.places.lines)
        problems.add_all(declared.unused)
        problems.raise_any()
    except InvalidPipeline as wrong:
        return f"{wrong}\n"
    return "fine\n"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_is_wrong_is_said_with_its_line(file: Path) -> None:
    assert said_about(file) == file.with_suffix(".txt").read_text()


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match=r"x\.toml cannot be read: No such file"):
        read_declaration(tmp_path / "x.toml")
    file = tmp_path / "y.toml"
    file.write_bytes(b"\xff")
    with pytest.raises(InvalidPipeline, match=r"y\.toml is not UTF-8"):
        read_declaration(file)
    file.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(InvalidPipeline, match=r"is larger than 1,048,576 bytes"):
        read_declaration(file)


FULL = """
[pipeline]
name = "all of it"
checkpoint = "notes"
trigger = "1m30s"
partitions = 3

[sources.a]
topic = ["one", "two"]
names = "x/#"
from = "2026-01-02T03:04:05Z"
where = "payload.x > 1"
payload = "json"
event_time = "payload:at::timestamp"
watermark = "10m"
batch_records = 100
skip_lost = true

[sources.b]
table = "/tables/b"

[sinks.t]
step = "A"
table = "../out"
mode = "complete"
partition_by = ["day"]

[sinks.u]
step = "last"
mode = "update"

[steps.last]
sql = "SELECT * FROM First;"

[steps.first]
sql = "SELECT * FROM a JOIN b"
"""


def test_everything_that_can_be_declared_is_understood(tmp_path: Path) -> None:
    file = tmp_path / "flow.toml"
    file.write_text(FULL)
    declared = read_declaration(file)
    assert declared.unused == ()
    assert (declared.name, declared.checkpoint) == ("all of it", tmp_path / "notes")
    assert (declared.trigger_s, declared.partitions) == (90.0, 3)
    assert [(step.name, step.sql, step.reads) for step in declared.steps] == [
        ("first", "SELECT * FROM a JOIN b", ("a", "b")),
        ("last", "SELECT * FROM First", ("first",)),
    ]
    a, b = declared.sources
    assert repr(a) == (
        "TopicSource(name='a', topics=('one', 'two'), names='x/#', start='2026-01-02T03:04:05Z', "
        "where='payload.x > 1', payload='json', event_time='payload:at::timestamp', "
        "watermark_s=600.0, batch_records=100, skips_lost=True)"
    )
    assert repr(b) == f"TableSource(name='b', path={Path('/tables/b')!r}, format='parquet')"
    t, u = declared.sinks
    assert repr(t) == (
        f"TableSink(name='t', step='A', path={tmp_path / '..' / 'out'!r}, mode='complete', "
        "partition_by=('day',))"
    )
    assert repr(u) == "TopicSink(name='u', step='last', topic=None, mode='update')"


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    file = tmp_path / "flow.toml"
    file.write_text('[sources.a]\ntopic = "t"\n[sinks.b]\nstep = "a"\ntopic = "u"\n')
    declared = read_declaration(file)
    assert (declared.name, declared.checkpoint) == ("flow", tmp_path / "flow.checkpoint")
    assert (declared.trigger_s, declared.partitions, declared.steps) == (None, None, ())
    assert repr(declared.sources[0]) == (
        "TopicSource(name='a', topics=('t',), names=None, start='earliest', where=None, "
        "payload='binary', event_time=None, watermark_s=None, batch_records=None, "
        "skips_lost=False)"
    )


def test_steps_that_read_each_other_in_a_very_long_row_are_refused(tmp_path: Path) -> None:
    steps = "".join(
        f'[steps.s{number}]\nsql = "SELECT * FROM s{number + 1}"\n' for number in range(300)
    )
    file = tmp_path / "flow.toml"
    file.write_text(f'[sources.s300]\ntopic = "t"\n{steps}[sinks.b]\nstep = "s0"\ntopic = "u"\n')
    with pytest.raises(InvalidPipeline, match="more than 200 steps read each other in a row"):
        read_declaration(file)
