"""One notion of where a reader starts in a topic, for every door.

`parse_position` turns what users write into one of five frozen values, or raises InvalidPosition
with the value, the rule and the way out. It asks no clock: the caller passes `now_us`. An offset
fits 63 bits; a timestamp is never negative, because no record is older than 1970.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Final, NoReturn

import msgspec

from penstock.core.naming.names import quoted
from penstock.model.errors import InvalidPosition


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first record that is still there."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The next record to come."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    """The record with this offset; whether the topic reaches it is for its log to say."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after this time; in the future that is the tail."""

    timestamp_us: int  # µs since 1970, UTC


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition, by their numbers."""

    offsets: tuple[tuple[int, int], ...]


Position = Earliest | Latest | AtOffset | AtTime | AtOffsets

EARLIEST: Final = Earliest()
LATEST: Final = Latest()

OFFSET_END: Final = 1 << 63  # one past the last offset that fits the disk format and SQL
OFFSET_DIGITS_MAX: Final = len(str(OFFSET_END))

_FORMS: Final = (
    "write earliest, latest, an offset such as 123, a time such as 2026-01-02T03:04:05Z, "
    "a duration back from now such as -24h, or an offset for each partition such as "
    '{"0": 23, "1": 7}'
)
_PARTED: Final = '{"0": 23, "1": 7}'
_PARTITION_DIGITS_MAX: Final = 9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_UNITS_US: Final = (86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000, 1_000)  # d h m s ms
_DURATION: Final = re.compile(
    r"-(?=[0-9])(?:([0-9]{1,18})d)?(?:([0-9]{1,18})h)?(?:([0-9]{1,18})m)?(?:([0-9]{1,18})s)?"
    r"(?:([0-9]{1,18})ms)?"
)
_TIME: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)


def parse_position(
    value: str | int | datetime | timedelta | Mapping[str, int], now_us: int
) -> Position:
    """The position a user means; else InvalidPosition.

    A timedelta is a distance back from now whatever its sign, so `timedelta(hours=24)` and the
    text '-24h' mean the same. A time finer than a microsecond is cut to the microsecond.
    """
    if isinstance(value, str):
        return _parse_text(value, now_us)
    if isinstance(value, bool):
        _refuse(value, f"is a bool, not an offset; {_FORMS}")
    if isinstance(value, int):
        return _at_offset(value, value)
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            _refuse(
                value.isoformat(),
                "has no time zone: add one, as in datetime(…, tzinfo=timezone.utc)",
            )
        return _at_time((value - _EPOCH) // _US)
    if isinstance(value, timedelta):
        return _at_time(now_us - abs(value) // _US)
    if isinstance(value, Mapping):
        return AtOffsets(read_offsets(value))
    if isinstance(value, float):
        _refuse(value, "is a float: offsets are whole; pass an int, a datetime or a timedelta")
    if isinstance(value, date):
        _refuse(value.isoformat(), "is a date without a time: pass a datetime with a time zone")
    _refuse(value, f"is not a position; {_FORMS}")


def time_before(
    value: str | int | datetime | timedelta | Mapping[str, int] | None, now_us: int
) -> int | None:
    """A time as µs since 1970, UTC; None stays None. InvalidPosition for any other position."""
    if value is None:
        return None
    position = parse_position(value, now_us)
    if not isinstance(position, AtTime):
        _refuse(
            value,
            "is not a time: write one such as 2026-01-02T03:04:05Z, or a duration back from now "
            "such as -30d",
        )
    return position.timestamp_us


def check_offset_type(offset: int) -> int:
    """An offset is a whole number; whether the topic reaches it is for its log to say."""
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise InvalidPosition(f"offset {quoted(offset)} is not a whole number: pass an int")
    return offset


def _parse_text(text: str, now_us: int) -> Position:
    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return LATEST
    if text.isascii() and text.isdigit():
        digits = text.lstrip("0") or "0"
        # Cut before int(), which refuses some thousand digits; what is cut is too large anyway.
        return _at_offset(int(digits[: OFFSET_DIGITS_MAX + 1]), text)
    if text.startswith("{"):
        return _parse_json(text)
    duration = _DURATION.fullmatch(text)
    if duration is not None:
        back_us = sum(
            int(count) * unit_us
            for count, unit_us in zip(duration.groups("0"), _UNITS_US, strict=True)
        )
        return _at_time(now_us - back_us)
    time = _TIME.fullmatch(text)
    if time is not None:
        return _at_time(_time_us(text, time))
    _refuse_text(text)


def _time_us(text: str, time: re.Match[str]) -> int:
    """An RFC 3339 time in µs since 1970; the leap second is the second after it."""
    year, month, day, hour, minute, second = (int(part) for part in time.groups()[:6])
    sign, zone_hours, zone_minutes = time.group(8) or "+", time.group(9), time.group(10)
    ahead = timedelta(hours=int(zone_hours or 0), minutes=int(zone_minutes or 0))
    is_leap = second == 60
    try:
        if int(zone_minutes or 0) > 59:
            raise ValueError("zone minutes must be in 0..59")
        zone = timezone(-ahead if sign == "-" else ahead)
        whole = datetime(
            year, month, day, hour, minute, second=59 if is_leap else second, tzinfo=zone
        )
    except ValueError as failure:
        _refuse(text, f"is not a time: {failure}; correct it, as in 2026-01-02T03:04:05Z")
    whole_s = (whole - _EPOCH) // timedelta(seconds=1)
    if is_leap:
        if whole_s % 86_400 != 86_399:
            _refuse(text, "is not a time: second 60 exists only at 23:59 UTC; write second 59")
        whole_s += 1
    fraction_us = int(((time.group(7) or "") + "000000")[:6])
    return whole_s * 1_000_000 + fraction_us


def _at_offset(offset: int, value: str | int) -> AtOffset:
    if offset < 0:
        _refuse(value, "is negative: offsets count from 0; for a time back write it as -5m")
    if offset >= OFFSET_END:
        _refuse(value, f"is too large: offsets are below {OFFSET_END}; {_FORMS}")
    return AtOffset(offset)


def _at_time(timestamp_us: int) -> AtTime:
    return AtTime(max(0, timestamp_us))


def _refuse_text(text: str) -> NoReturn:
    """Guess what was meant, so that the way out is the right one."""
    rest = text[1:]
    if text.startswith("-") and rest.isascii() and rest.isdigit():
        _refuse(text, "is negative: offsets count from 0; a duration has a unit, as in -5m")
    if _DURATION.fullmatch("-" + text):
        _refuse(
            text, "is a duration into the future: durations go back from now; put a '-' in front"
        )
    if _TIME.fullmatch(text + "Z"):
        _refuse(text, "has no time zone: append Z for UTC, or an offset such as +02:00")
    if text.lower() in ("earliest", "latest"):
        _refuse(text, f"is not in lower case: write {text.lower()}")
    _refuse(text, f"is not a position; {_FORMS}")


def read_offsets(value: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """Offsets by the numbers of their partitions, which JSON writes as text; InvalidPosition."""
    found: dict[int, int] = {}
    for partition, offset in value.items():
        number = read_partition(partition)
        if isinstance(offset, bool) or not isinstance(offset, int):
            _refuse(offset, "is not an offset: it is a whole number, as in " + _PARTED)
        found[number] = _at_offset(offset, offset).offset
    if not found:
        _refuse("{}", "names no partition: give an offset for each, as in " + _PARTED)
    return tuple(sorted(found.items()))


def read_partition(partition: str) -> int:
    """The number of a partition, which JSON writes as text; InvalidPosition."""
    number = str(partition)
    if not (number.isascii() and number.isdigit() and len(number) <= _PARTITION_DIGITS_MAX):
        _refuse(partition, "is not the number of a partition, as in " + _PARTED)
    return int(number)


def _parse_json(text: str) -> AtOffsets:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        _refuse(text, "is not JSON: give an offset for each partition, as in " + _PARTED)
    return AtOffsets(read_offsets(value))


def _refuse(value: object, why: str) -> NoReturn:
    raise InvalidPosition(f"position {quoted(value)} {why}")
