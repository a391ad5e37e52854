"""RFC 3339 text to microseconds since 1970, exactly, or nothing.

A time needs its date, seconds and zone. Digits finer than a microsecond must be zeros: stored
timestamps have none, and a silently cut digit would change what `=` and `<` say.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_RFC_3339: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"(?:\.([0-9]{1,6})0*)?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_DAY_S: Final = 86_400


def time_us(text: str) -> int | None:
    """µs since 1970, UTC; None when the text is not RFC 3339 or names no moment.

    A leap second, which only 23:59:60 UTC can be, is the second after it.
    """
    match = _RFC_3339.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, sign, zone_hours, zone_minutes = match.groups("0")[6:]
    if int(zone_hours) > 23 or int(zone_minutes) > 59:
        return None
    is_leap = second == 60
    try:
        local = datetime(year, month, day, hour, minute, second=second - is_leap, tzinfo=UTC)
    except ValueError:  # 30 February, hour 24, year 0
        return None
    ahead_s = (int(zone_hours) * 60 + int(zone_minutes)) * 60
    whole_s = (local - _EPOCH) // _SECOND - (-ahead_s if sign == "-" else ahead_s) + is_leap
    if is_leap and whole_s % _DAY_S:
        return None
    return whole_s * 1_000_000 + int(fraction.ljust(6, "0"))
