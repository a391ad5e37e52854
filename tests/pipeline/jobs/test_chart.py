"""Is a picture drawn of whatever there is, little or much, whatever it is called?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from matplotlib.image import imread

from penstock.pipeline.jobs.stats.chart import (
    LABEL_CHARS_MAX,
    REST,
    STEPS_MAX,
    TOPICS_MAX,
    _Series,
    _short,
    draw,
)
from penstock.pipeline.jobs.stats.minutes import Picture

START = datetime(2026, 3, 1, 23, 50, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def picture(minutes: int, topics: int) -> Picture:
    traffic = [
        (f"topic {topic}", START + at * MINUTE, topic + 1, 100 * (at + 1))
        for at in range(0, minutes, 2)
        for topic in range(topics)
    ]
    pauses = [(START + at * MINUTE, 0.0, 5.0, 1e7) for at in range(minutes)]
    return Picture(traffic, pauses, [("$weird/$_^{/" + "y" * 60, 12), ("$b/$^", 3)])


@pytest.mark.parametrize(("minutes", "topics"), [(0, 0), (1, 1), (30, 3), (3_000, 12)])
@pytest.mark.slow
def test_there_is_a_picture(tmp_path: Path, minutes: int, topics: int) -> None:
    lags = [("consumer", f"c{at}", "t", 0, at, at) for at in range(minutes % 20)]
    draw(picture(minutes, topics), lags, tmp_path / "x.png")
    pixels = imread(tmp_path / "x.png")
    assert pixels.shape[0] > 500 and pixels.shape[1] > 1_000
    assert pixels.min() < 0.3  # there is ink on it
    assert list(tmp_path.iterdir()) == [tmp_path / "x.png"]


def test_minutes_without_messages_are_shown_as_such_and_all_messages_are_there() -> None:
    series = _Series(picture(30, 3))
    assert series.messages["topic 2"][:4] == [3, 0, 3, 0]
    assert len(series.times) == len(series.messages["topic 0"]) + 1
    assert series.span() == "2026-03-01 23:50 to 2026-03-02 00:19"


def test_a_long_time_is_put_together_into_few_steps_and_many_topics_into_one() -> None:
    asked = picture(3_000, 12)
    series = _Series(asked)
    assert len(series.times) <= STEPS_MAX + 1
    assert len(series.topics) == TOPICS_MAX + 1 and series.topics[-1] == REST
    drawn = sum(sum(values) for values in series.messages.values()) * series.step
    assert drawn == pytest.approx(sum(row[2] for row in asked.traffic))


def test_a_long_name_is_cut_in_the_middle() -> None:
    assert _short("a" * LABEL_CHARS_MAX) == "a" * LABEL_CHARS_MAX
    assert len(_short("a" * 50 + "end")) == LABEL_CHARS_MAX
    assert _short("a" * 50 + "end").endswith("end")
