"""Values of a pipeline's file, checked one by one: the value, the rule, the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.core.durations import seconds
from penstock.core.naming.names import check_topic
from penstock.core.position import AtOffset, parse_position
from penstock.core.where import compile_where
from penstock.model.errors import RefusedError
from penstock.pipeline.declared.declaration import ONCE


def a_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise RefusedError(f"{value!r} is not a string: write it in quotes")
    return value


def some_texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, list) and value:
        return tuple(map(a_text, value))
    raise RefusedError(f'{value!r} is not a list of strings: write ["a", "b"]')


def some_topics(value: Any) -> tuple[str, ...]:
    if not isinstance(value, str | list) or not value:
        raise RefusedError(
            f'{value!r} is not a topic: write its name in quotes, or several names as ["a", "b"]'
        )
    return tuple(map(check_topic, [a_text(value)] if isinstance(value, str) else some_texts(value)))


def a_position(value: Any, topics: tuple[str, ...] | None) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise RefusedError(
            f'{value!r} is not a position: write "earliest", "latest", an offset, a time in '
            'quotes, or a duration back from now such as "-24h"'
        )
    position = parse_position(value, 1 << 62)
    if isinstance(position, AtOffset) and topics is not None and len(topics) > 1:
        raise RefusedError(
            f"{value!r} is an offset, but the source has several topics: give a time"
        )
    return str(value)


def a_where(value: Any) -> str:
    return compile_where(a_text(value)).text


def a_trigger(value: Any) -> float | None:
    if value == ONCE:
        return None
    try:
        return seconds("trigger", value)
    except RefusedError:
        raise RefusedError(
            f'{value!r} is neither "once" (process the existing records and end) nor a '
            'duration such as "10s" (look for new records at this interval)'
        ) from None


def a_duration(value: Any) -> float:
    try:
        return seconds("", value)
    except RefusedError:
        raise RefusedError(
            f'{value!r} is not a duration above 0: write "30s", "10m" or "1h"'
        ) from None


def a_count(value: Any, most: int = 1 << 40) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
        raise RefusedError(f"{value!r} is not a whole number from 1 to {most:,}")
    return value


def yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise RefusedError(f"{value!r} is neither true nor false")
    return value


def one_of(words: tuple[str, ...], why: str = "") -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in words:
            known = " nor ".join(f'"{word}"' for word in words)
            raise RefusedError(f"{value!r} is neither {known}{': ' if why else ''}{why}")
        return str(value)

    return check
