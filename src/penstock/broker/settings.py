"""Settings of a broker and of its topics, checked once, with errors that name the way out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from penstock.core.durations import seconds
from penstock.log.directory import FILES, POSTGRES
from penstock.log.interface import DURABILITIES, FSYNC, LogSettings
from penstock.model.errors import InvalidSetting
from penstock.model.limits import KIB, MIB, PAYLOAD_BYTES_MAX

_DAY_S: Final = 86_400.0
_SIZE: Final = re.compile(r"(\d+)\s*(|B|KiB|MiB|GiB|TiB)", re.IGNORECASE)
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,49}")  # and a suffix fits behind it
URL_SCHEMES: Final = ("postgresql://", "postgres://")
_PASSWORDS: Final = (re.compile(r"(://[^:/?#]*:)[^/?#]*(?=@)"), re.compile(r"([?&]password=)[^&]*"))
_SIZE_UNITS: Final = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": KIB * MIB, "tib": MIB * MIB}


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Everything a broker can be told; topic settings here are the defaults of new topics."""

    durability: str = FSYNC
    retention_age: float | None = 7 * _DAY_S  # seconds; None keeps for ever
    retention_bytes: int | None = None
    segment_bytes: int = 32 * MIB
    segment_age: float = _DAY_S
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    disk_free_percent_min: float = 5.0  # publishes are refused below it
    position_saves_max: int = 1_000  # unsaved positions that start a save
    position_save_s_max: float = 1.0  # and the time after which they are saved anyway
    upkeep_s: float = 5.0  # how often retention, sealing and free space are looked after
    catalog_url: str = ""  # a database of PostgreSQL; empty: SQLite in the data directory
    catalog_schema: str = "penstock"  # of that database
    log_backend: str = FILES  # where topics lie: in files, or in tables beside the catalog


def make_settings(values: dict[str, Any]) -> BrokerSettings:
    """Settings from keyword arguments; an unknown key is an error with the nearest known one."""
    _check_keys(values, [field.name for field in fields(BrokerSettings)])
    checked: dict[str, Any] = {key: _CHECKS[key](key, value) for key, value in values.items()}
    return replace(BrokerSettings(), **checked)


def check_storage(settings: BrokerSettings) -> None:
    """Refuse a choice of backends that does not work together."""
    if settings.log_backend == POSTGRES and not settings.catalog_url:
        raise InvalidSetting(
            "topics in PostgreSQL lie beside the catalog: give its address too ([catalog] url,"
            " catalog_url=…), or keep topics in files ([log] backend)"
        )


def topic_settings(defaults: BrokerSettings, values: dict[str, Any]) -> LogSettings:
    """Settings of one topic: the broker's defaults, changed by `values`."""
    _check_keys(values, _TOPIC_KEYS)
    s = make_settings(values)
    merged = {key: getattr(s if key in values else defaults, key) for key in _TOPIC_KEYS}
    return LogSettings(
        durability=merged["durability"],
        retention_age_s=merged["retention_age"],
        retention_bytes=merged["retention_bytes"],
        segment_bytes=merged["segment_bytes"],
        segment_age_s=merged["segment_age"],
    )


def altered(settings: LogSettings, values: dict[str, Any]) -> LogSettings:
    """The settings of a topic with some of them changed."""
    _check_keys(values, _TOPIC_KEYS)
    current = BrokerSettings(
        durability=settings.durability,
        retention_age=settings.retention_age_s,
        retention_bytes=settings.retention_bytes,
        segment_bytes=settings.segment_bytes,
        segment_age=settings.segment_age_s,
    )
    return topic_settings(current, values)


def _check_keys(values: dict[str, Any], known: Sequence[str]) -> None:
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise InvalidSetting(f"setting {key!r} is unknown: {hint}")


_TOPIC_KEYS: Final = (
    "durability",
    "retention_age",
    "retention_bytes",
    "segment_bytes",
    "segment_age",
)


def size_bytes(key: str, value: object) -> int:
    """A size: bytes, or text such as '64 MiB'."""
    result = -1
    if isinstance(value, int) and not isinstance(value, bool):
        result = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        result = int(match[1]) * _SIZE_UNITS[match[2].lower()]
    if not 0 < result < 1 << 62:
        raise InvalidSetting(
            f"{key} {value!r} is not a size above 0: write bytes as a whole number, or '64 MiB'"
        )
    return result


def _seconds_or_none(key: str, value: object) -> float | None:
    return None if _is_unlimited(value) else seconds(key, value)


def _bytes_or_none(key: str, value: object) -> int | None:
    return None if _is_unlimited(value) else size_bytes(key, value)


def _is_unlimited(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() == "unlimited")


def _durability(key: str, value: object) -> str:
    if value not in DURABILITIES:
        raise InvalidSetting(
            f"{key} {value!r} is unknown: 'fsync' acknowledges what is on disk, "
            "'os' what the operating system holds"
        )
    return str(value)


def _segment_bytes(key: str, value: object) -> int:
    result = size_bytes(key, value)
    if result < 64 * KIB:
        raise InvalidSetting(f"{key} {value!r} is too small: use at least 64 KiB")
    return result


def _payload_bytes(key: str, value: object) -> int:
    result = size_bytes(key, value)
    if result > PAYLOAD_BYTES_MAX:
        raise InvalidSetting(f"{key} {value!r} is too large: at most {PAYLOAD_BYTES_MAX} bytes")
    return result


def _percent(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 100:
        raise InvalidSetting(f"{key} {value!r} is not a percentage from 0 up to 100")
    return float(value)


def _count(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidSetting(f"{key} {value!r} is not a whole number above 0")
    return value


def _database_url(key: str, value: object) -> str:
    if value == "" or (isinstance(value, str) and value.startswith(URL_SCHEMES)):
        return str(value)
    raise InvalidSetting(
        f"{key} {mask_password(str(value))!r} is not the address of a database of PostgreSQL: write"
        " postgresql://USER@HOST:PORT/DATABASE, or leave it empty for SQLite"
    )


def mask_password(url: str) -> str:
    """The address of a database as people may see it."""
    for password in _PASSWORDS:
        url = password.sub(r"\1***", url)
    return url


def _schema(key: str, value: object) -> str:
    if not isinstance(value, str) or not _SCHEMA.fullmatch(value) or value.startswith("pg_"):
        raise InvalidSetting(
            f"{key} {value!r} cannot name a schema: up to 50 small letters, digits and '_',"
            " no digit first, and not pg_…"
        )
    return value


def _backend(key: str, value: object) -> str:
    if value not in (FILES, POSTGRES):
        raise InvalidSetting(f"{key} {value!r} is unknown: use 'files' or 'postgres'")
    return str(value)


_CHECKS: Final = {
    "durability": _durability,
    "retention_age": _seconds_or_none,
    "retention_bytes": _bytes_or_none,
    "segment_bytes": _segment_bytes,
    "segment_age": seconds,
    "payload_bytes_max": _payload_bytes,
    "disk_free_percent_min": _percent,
    "position_saves_max": _count,
    "position_save_s_max": seconds,
    "upkeep_s": seconds,
    "catalog_url": _database_url,
    "catalog_schema": _schema,
    "log_backend": _backend,
}
