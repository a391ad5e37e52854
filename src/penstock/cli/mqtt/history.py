"""`--from` and `--where` of `penstock sub`, across lost connections.

Records of such a subscription say their topic and offset, so what was shown is known. Connected
again, the subscription is made from there on: by the offset where the filter means one topic, else
from its first beginning, and what was shown before is left out.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from penstock.core.position import AtOffset, AtTime, Latest, parse_position
from penstock.core.where import compile_where
from penstock.mqtt.packets import Publish
from penstock.mqtt.properties import Properties

FROM: Final = "from"
WHERE: Final = "where"
TOPIC: Final = "penstock-topic"
OFFSET: Final = "penstock-offset"
TIME: Final = "penstock-time"
PARTITION: Final = "penstock-partition"  # only where a topic has several
DIGITS_END: Final = 20  # no offset has so many


def place_of(message: Publish) -> dict[str, str]:
    """What a record of a feed says about itself; empty for other messages."""
    known = (TOPIC, OFFSET, TIME, PARTITION)
    return {key: value for key, value in message.properties.user_properties if key in known}


def offset_of(place: dict[str, str]) -> int | None:
    """The offset that a record says it has; anybody may publish such a property with any text."""
    return number_of(place.get(OFFSET, ""))


def number_of(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < DIGITS_END else None


class History:
    """What was asked for, and how far it was shown."""

    def __init__(self, start: str | None, where: str | None) -> None:
        """InvalidPosition, InvalidExpression: before anything is sent."""
        position = parse_position(start or "latest", 0)
        if where is not None:
            compile_where(where)
        self._start = start
        self._where = where
        self._is_at_offset = isinstance(position, AtOffset)
        # Durations count from the first SUBSCRIBE on, also when it is said again later.
        self._back_ms: int | None = 0 if isinstance(position, Latest) else None
        if start is not None and start.startswith("-") and isinstance(position, AtTime):
            self._back_ms = _duration_ms(start)
        self._begun_s: float | None = None
        # Topic and partition -> the last offset. No partition is named where there is only one.
        self._shown: dict[tuple[str, str], int] = {}

    @property
    def is_asked(self) -> bool:
        return self._start is not None or self._where is not None

    @property
    def has_begun(self) -> bool:
        """Was it subscribed before, on another connection?"""
        return self._begun_s is not None

    @property
    def is_under_way(self) -> bool:
        """Has anything been shown that must not come again?"""
        return bool(self._shown)

    def properties(self, given: Properties, *, by_offset: bool) -> Properties:
        """Those of the next SUBSCRIBE; `by_offset` if the filter may mean one topic."""
        if not self.is_asked:
            return given
        pairs = [(FROM, self._position(by_offset))]
        if self._where is not None:
            pairs.append((WHERE, self._where))
        return replace(given, user_properties=(*given.user_properties, *pairs))

    def _position(self, by_offset: bool) -> str:
        now_s = time.monotonic()
        if self._begun_s is None:
            self._begun_s = now_s
            return self._start or "latest"
        if (by_offset or self._is_at_offset) and len(self._shown) == 1:
            (((_, partition), offset),) = self._shown.items()
            if not partition:
                return str(offset + 1)
        if self._back_ms is None:
            return self._start or "latest"
        return f"-{self._back_ms + int((now_s - self._begun_s) * 1_000) + 1}ms"

    def is_new(self, message: Publish) -> bool:
        """False if it was shown on an earlier connection."""
        place = place_of(message)
        offset = offset_of(place)
        if message.retain or TOPIC not in place or offset is None:
            return True  # a retained message says where it lies, not how far we are
        part = place[TOPIC], place.get(PARTITION, "")
        if offset <= self._shown.get(part, -1):
            return False
        self._shown[part] = offset
        return True


def _duration_ms(text: str) -> int:
    """How far back a duration such as -1h30m goes."""
    far_us = 1 << 62
    position = parse_position(text, far_us)
    assert isinstance(position, AtTime)
    return (far_us - position.timestamp_us) // 1_000
