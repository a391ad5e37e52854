"""Durations as users write them: seconds, or text such as '90s', '1h30m', '7d'."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from penstock.core.naming.names import shown
from penstock.model.errors import InvalidSetting

S_END: Final = 1e12  # some 30,000 years
TEXT_CHARS_MAX: Final = 100  # of a duration: every unit, with all digits that count
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")


def seconds(key: str, value: object) -> float:
    """A duration: seconds, a timedelta, or text such as '90s', '1h30m', '7d'."""
    result = -1.0
    text = value.strip().lower() if isinstance(value, str) and len(value) <= TEXT_CHARS_MAX else ""
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        result = float(max(-1, min(value, S_END)))
    elif text:
        parts = _DURATION.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            result = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if not 0 < result < S_END:
        hint = "write '90s', '12h' or '7d', a number of seconds, or a timedelta"
        if text.isascii() and text.isdecimal():
            hint = f"add a unit, such as '{text}s', '{text}h' or '{text}d'"
        raise InvalidSetting(f"{key} {shown(value)} is not a duration above 0: {hint}")
    return result
