"""Durations as users write them: seconds, or text such as '90s', '1h30m', '7d'."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from penstock.model.errors import InvalidSetting

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def seconds(key: str, value: object) -> float:
    """A duration: seconds, a timedelta, or text such as '90s', '1h30m', '7d'."""
    result = -1.0
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        result = float(value)
    elif isinstance(value, str):
        text = value.strip().lower()
        parts = _DURATION.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            result = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if not 0 < result < 1e12:
        hint = "write '90s', '12h' or '7d', a number of seconds, or a timedelta"
        if isinstance(value, str) and value.strip().isdecimal():
            number = value.strip()
            hint = f"say of what, such as '{number}s', '{number}h' or '{number}d'"
        raise InvalidSetting(f"{key} {value!r} is not a duration above 0: {hint}")
    return result
