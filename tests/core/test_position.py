"""Does every way to write a position mean one thing, and does everything else say what to write?"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.naming.names import quoted
from penstock.core.position import (
    EARLIEST,
    LATEST,
    OFFSET_END,
    AtOffset,
    AtTime,
    Position,
    parse_position,
)
from penstock.model.errors import InvalidPosition

NOW_US = 1_767_323_045_000_000  # 2026-01-02T03:04:05Z
SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
DAY_US = 24 * HOUR_US


@pytest.mark.parametrize(
    ("value", "position"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("0", AtOffset(0)),
        ("123", AtOffset(123)),
        ("007", AtOffset(7)),
        (str(OFFSET_END - 1), AtOffset(OFFSET_END - 1)),
        ("0" * 5_000 + "7", AtOffset(7)),
        (0, AtOffset(0)),
        (123, AtOffset(123)),
        (OFFSET_END - 1, AtOffset(OFFSET_END - 1)),
    ],
    ids=quoted,
)
def test_word_or_offset_is_itself(value: str | int, position: Position) -> None:
    assert parse_position(value, NOW_US) == position


@pytest.mark.parametrize(
    ("text", "timestamp_us"),
    [
        ("2026-01-02T03:04:05Z", NOW_US),
        ("2026-01-02t03:04:05z", NOW_US),
        ("2026-01-02 03:04:05Z", NOW_US),
        ("2026-01-02T05:04:05+02:00", NOW_US),
        ("2026-01-01T21:34:05-05:30", NOW_US),
        ("2026-01-02T03:04:05-00:00", NOW_US),
        ("2026-01-02T03:04:05.5Z", NOW_US + 500_000),
        ("2026-01-02T03:04:05.000001Z", NOW_US + 1),
        ("2026-01-02T03:04:05.0000019Z", NOW_US + 1),
        ("2026-01-02T03:04:05." + "9" * 5_000 + "Z", NOW_US + 999_999),
        ("2024-02-29T00:00:00Z", 1_709_164_800 * SECOND_US),
        ("2016-12-31T23:59:60Z", 1_483_228_800 * SECOND_US),
        ("2017-01-01T00:59:60.25+01:00", 1_483_228_800 * SECOND_US + 250_000),
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.9Z", 0),
        ("0001-01-01T00:00:00+23:59", 0),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_800 * SECOND_US - 1),
    ],
    ids=quoted,
)
def test_rfc_3339_time_is_its_microsecond(text: str, timestamp_us: int) -> None:
    assert parse_position(text, NOW_US) == AtTime(timestamp_us)


@pytest.mark.parametrize(
    ("text", "back_us"),
    [
        ("-24h", DAY_US),
        ("-15m", 900 * SECOND_US),
        ("-30s", 30 * SECOND_US),
        ("-7d", 7 * DAY_US),
        ("-500ms", 500_000),
        ("-1h30m", 5_400 * SECOND_US),
        ("-1d2h3m4s5ms", DAY_US + 2 * HOUR_US + 184 * SECOND_US + 5_000),
        ("-1m1ms", 60 * SECOND_US + 1_000),
        ("-90m", 90 * 60 * SECOND_US),
        ("-0s", 0),
        ("-999999999999999999d", NOW_US),
    ],
)
def test_duration_goes_back_from_now_and_not_before_1970(text: str, back_us: int) -> None:
    assert parse_position(text, NOW_US) == AtTime(NOW_US - back_us)


def test_time_in_the_future_stays_a_time() -> None:
    assert parse_position("2100-01-01T00:00:00Z", NOW_US) == AtTime(4_102_444_800 * SECOND_US)
    ahead = datetime(2100, 1, 1, tzinfo=UTC)
    assert parse_position(ahead, NOW_US) == AtTime(4_102_444_800 * SECOND_US)


def test_datetime_with_a_zone_is_its_microsecond() -> None:
    zone = timezone(timedelta(hours=2))
    value = datetime(2026, 1, 2, 5, 4, 5, 7, tzinfo=zone)
    assert parse_position(value, 0) == AtTime(NOW_US + 7)
    assert parse_position(datetime(1, 1, 1, tzinfo=zone), 0) == AtTime(0)


def test_timedelta_of_either_sign_is_a_distance_back() -> None:
    day = timedelta(hours=24)
    assert parse_position(day, NOW_US) == parse_position("-24h", NOW_US)
    assert parse_position(-day, NOW_US) == parse_position("-24h", NOW_US)
    assert parse_position(timedelta(microseconds=1), NOW_US) == AtTime(NOW_US - 1)
    assert parse_position(timedelta.max, NOW_US) == AtTime(0)
    assert parse_position(timedelta.min, NOW_US) == AtTime(0)


@pytest.mark.parametrize(
    ("value", "way_out"),
    [
        ("", "write earliest, latest, an offset"),
        ("first", "write earliest, latest, an offset"),
        ("Earliest", "write earliest"),
        ("LATEST", "write latest"),
        (" 5", "write earliest"),
        ("+5", "write earliest"),
        ("1_000", "write earliest"),
        ("1.5", "write earliest"),
        ("٣", "write earliest"),
        ("-5", "a duration has a unit, as in -5m"),
        (-5, "offsets count from 0"),
        (str(OFFSET_END), f"offsets are below {OFFSET_END}"),
        (OFFSET_END, f"offsets are below {OFFSET_END}"),
        ("9" * 70_000, f"offsets are below {OFFSET_END}"),
        (2**99_999, f"offsets are below {OFFSET_END}"),
        (-(2**99_999), "offsets count from 0"),
        ("24h", "put a '-' in front"),
        ("1h30m", "put a '-' in front"),
        ("-", "write earliest"),
        ("-h", "write earliest"),
        ("-30m1h", "write earliest"),
        ("-1h1h", "write earliest"),
        ("-1.5h", "write earliest"),
        ("-1w", "write earliest"),
        ("--1h", "write earliest"),
        ("-1h ", "write earliest"),
        ("-1h\n", "write earliest"),
        ("-" + "9" * 19 + "d", "write earliest"),
        ("2026-01-02T03:04:05", "append Z for UTC"),
        ("2026-01-02", "write earliest"),
        ("2026-01-02T03:04Z", "write earliest"),
        ("2026-01-02T03:04:05.Z", "write earliest"),
        ("2026-01-02T03:04:05+0200", "write earliest"),
        ("2026-01-02T03:04:05 02:00", "write earliest"),
        ("2026-13-02T03:04:05Z", "correct it"),
        ("2025-02-29T03:04:05Z", "correct it"),
        ("2026-01-02T24:00:00Z", "correct it"),
        ("2026-01-02T03:04:61Z", "correct it"),
        ("2026-01-02T03:04:05+24:00", "correct it"),
        ("2026-01-02T03:04:05+01:60", "correct it"),
        ("0000-01-01T00:00:00Z", "correct it"),
        ("2026-01-02T03:04:60Z", "write second 59"),
        (True, "write earliest"),
        (False, "write earliest"),
        (1.0, "pass an int"),
        (float("nan"), "pass an int"),
        (None, "write earliest"),
        (b"latest", "write earliest"),
        (["latest"], "write earliest"),
        (datetime(2026, 1, 2), "add one, as in datetime("),
        (date(2026, 1, 2), "pass a datetime with a time zone"),
    ],
    ids=quoted,
)
def test_anything_else_is_refused_with_its_value_and_the_way_out(value: Any, way_out: str) -> None:
    with pytest.raises(InvalidPosition) as refusal:
        parse_position(value, NOW_US)
    message = str(refusal.value)
    assert message.startswith("position ")
    assert way_out in message
    assert len(message) < 400
    if isinstance(value, str | int | float | bytes | None):
        assert quoted(value) in message


ZONES = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda m: timezone(timedelta(minutes=m)))


@given(st.datetimes(min_value=datetime(1970, 1, 2), timezones=ZONES))
def test_text_of_a_datetime_means_the_same_as_the_datetime(value: datetime) -> None:
    assert parse_position(value.isoformat(), NOW_US) == parse_position(value, NOW_US)


@given(st.integers(0, 10**6), st.sampled_from(["d", "h", "m", "s", "ms"]))
def test_duration_text_means_the_same_as_the_timedelta(count: int, unit: str) -> None:
    word = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}[unit]
    expected = parse_position(timedelta(**{word: count}), NOW_US)
    assert parse_position(f"-{count}{unit}", NOW_US) == expected


@given(st.text(alphabet="-+0123456789dhmsTZtz:. earlisto", max_size=40))
def test_any_text_is_a_position_or_refused(text: str) -> None:
    try:
        position = parse_position(text, NOW_US)
    except InvalidPosition:
        return
    assert isinstance(position, Position)
