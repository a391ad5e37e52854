"""Settings of a topic, checked one by one, with errors that name the way out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.core.durations import seconds
from penstock.core.naming.names import shown
from penstock.model.errors import InvalidSetting
from penstock.model.limits import KIB, MIB

FSYNC: Final = "fsync"  # an ack means: on disk, survives power loss
OS: Final = "os"  # an ack means: handed to the operating system, survives kill -9
REPLICATED: Final = "replicated"  # an ack means: on every broker of Kafka that is in sync
DURABILITIES: Final = (FSYNC, OS, REPLICATED)
PARTITIONS_MAX: Final = 1_000  # of one topic: each is followed and has levels of its own

_SIZE: Final = re.compile(r"0*([0-9]{1,19})\s*(|B|KiB|MiB|GiB|TiB)", re.IGNORECASE)
_SIZE_UNITS: Final = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": KIB * MIB, "tib": MIB * MIB}


def check_topic_setting(key: str, value: object) -> None:
    """InvalidSetting for a key or a value that no topic has."""
    check_keys({key: value}, TOPIC_KEYS)
    TOPIC_CHECKS[key](key, value)


def check_keys(values: dict[str, Any], known: Sequence[str]) -> None:
    """InvalidSetting names an unknown key and the nearest known one."""
    for key in values:
        if key not in known:
            import difflib

            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise InvalidSetting(f"setting {key!r} is unknown: {hint}")


def size_bytes(key: str, value: object) -> int:
    """A size: bytes, or text such as '64 MiB'."""
    result = -1
    if isinstance(value, int) and not isinstance(value, bool):
        result = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        result = int(match[1]) * _SIZE_UNITS[match[2].lower()]
    if not 0 < result < 1 << 62:
        raise InvalidSetting(
            f"{key} {shown(value)} is not a size above 0: write bytes as a whole number, or "
            "'64 MiB'"
        )
    return result


def _seconds_or_none(key: str, value: object) -> float | None:
    return None if is_unlimited(value) else seconds(key, value)


def _bytes_or_none(key: str, value: object) -> int | None:
    return None if is_unlimited(value) else size_bytes(key, value)


def is_unlimited(value: object) -> bool:
    """Whether a setting says that there is no limit."""
    return value is None or (isinstance(value, str) and value.strip().lower() == "unlimited")


def _durability(key: str, value: object) -> str:
    if value not in DURABILITIES:
        raise InvalidSetting(
            f"{key} {shown(value)} is unknown: 'fsync' acknowledges what is on disk, "
            "'os' what the operating system holds, 'replicated' (only in Kafka) what its brokers "
            "hold"
        )
    return str(value)


def _segment_bytes(key: str, value: object) -> int:
    result = size_bytes(key, value)
    if result < 64 * KIB:
        raise InvalidSetting(f"{key} {shown(value)} is too small: use at least 64 KiB")
    return result


def _yes_or_no(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidSetting(f"{key} {shown(value)} is not true or false")
    return value


def check_partitions(key: str, value: object) -> int:
    """Of a new topic; they cannot be changed later."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= PARTITIONS_MAX:
        return value
    raise InvalidSetting(
        f"{key} {shown(value)} is not a number of partitions: use 1 to {PARTITIONS_MAX}"
    )


TOPIC_CHECKS: Final[dict[str, Callable[[str, object], Any]]] = {
    "durability": _durability,
    "retention_age": _seconds_or_none,
    "retention_bytes": _bytes_or_none,
    "segment_bytes": _segment_bytes,
    "segment_age": seconds,
    "history": _yes_or_no,
    "history_age": _seconds_or_none,
    "partitions": check_partitions,
}
TOPIC_KEYS: Final = tuple(TOPIC_CHECKS)
