"""Spans of time as people write them: 90s, 12h, 30d."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from penstock.core.position import AtTime, parse_position
from penstock.model.errors import InvalidPosition, InvalidSetting

_FAR_US: Final = 1 << 60  # some time after every age


def age_us(name: str, age: str | timedelta) -> int:
    """An age in µs; InvalidSetting names what it was given for."""
    if isinstance(age, timedelta):
        return age // timedelta(microseconds=1)
    try:
        position = parse_position(f"-{age}", _FAR_US) if isinstance(age, str) else None
    except InvalidPosition:
        position = None
    if not isinstance(position, AtTime):
        raise InvalidSetting(f"{name} {age!r} is not an age: write it as 90s, 12h or 30d")
    return _FAR_US - position.timestamp_us
