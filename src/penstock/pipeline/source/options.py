"""The options of `format("penstock")`, checked once, with errors that name the way out.

OPTIONS is the whole list. An unknown option is an error with the nearest known one; a bad value is
an error with the value and the rule. Spark keeps options case-insensitively and as text; here they
get their spelling and their types back.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from penstock.core.naming.names import check_filter, check_tenant, check_topic, quoted
from penstock.core.position import AtOffset, AtTime, Position, parse_position
from penstock.model import unix_socket
from penstock.model.errors import InvalidSetting, RefusedError
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.pipeline.source.offsets import Places, places_from_text

T = TypeVar("T")

BATCH: Final = "batch"
STREAM: Final = "stream"
WRITE: Final = "write"

KEY_CHARS_MAX: Final = 255  # as a consumer's name

_CONNECTION: Final = ("path", "url", "user", "password", "token", "tenant")
_OF_SPARK: Final = ("checkpointLocation", "queryName")
_READ: Final = (
    "topic",
    "subscribe",
    "names",
    "startingOffsets",
    "startingTimestamp",
    "minPartitions",
    "failOnDataLoss",
    "where",
    *_CONNECTION,
)
_OF_USE: Final = {
    BATCH: (*_READ, "endingOffsets", "endingTimestamp"),
    STREAM: (*_READ, "maxOffsetsPerTrigger", "finishWindows"),
    # Spark hands its own options of a streaming query to the sink as well.
    WRITE: ("topic", "idempotencyKey", "idempotencyNumber", *_OF_SPARK, *_CONNECTION),
}
OPTIONS: Final = tuple(dict.fromkeys(name for names in _OF_USE.values() for name in names))
_SPELLED: Final = {name.lower(): name for name in OPTIONS}


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the topics are: in the files of a data directory, or at a broker's address."""

    path: Path | None
    url: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    tenant: str = ""  # empty: that of the login; of files, the default one

    @property
    def stored_tenant(self) -> TenantId:
        """Whose files are meant."""
        return TenantId(self.tenant or DEFAULT_TENANT)

    def options(self) -> dict[str, str]:
        """The same as options of `format("penstock")`."""
        given = {"tenant": self.tenant}
        if self.path is not None:
            given["path"] = str(self.path)
        else:
            given |= {"url": self.url, "user": self.user, "password": self.password}
            given["token"] = self.token
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query reads. Without `topics` all of them, which then needs `names`."""

    connection: Connection
    topics: tuple[str, ...]
    names: str | None
    start: Position | Places
    end: Position | Places
    records_max: int | None  # of one micro-batch
    pieces_min: int | None
    fails_on_loss: bool
    where: str | None
    finishes_windows: bool = False


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where a DataFrame is written. Without `topic` each row names its own."""

    connection: Connection
    topic: str | None
    key: str | None  # makes a batch count once, however often it is written
    number: int = 0  # of a key's batches, which come one after the other


def check_known(options: Mapping[str, str]) -> None:
    """Refuse options that no use of the source or the sink knows."""
    for key in options:
        if key.lower() not in _SPELLED:
            _unknown(key, OPTIONS)


def topics_text(topics: Iterable[str]) -> str:
    """Topics as the option `topic` takes them, whatever is in their names: a list in JSON."""
    return msgspec.json.encode([*topics]).decode()


def source_options(options: Mapping[str, str], use: str, now_us: int) -> SourceOptions:
    """The options of a batch or a stream; InvalidSetting or another RefusedError."""
    given = _given(options, use)
    topics = _topics(given)
    names = _checked(given, "names", check_filter)
    if not topics and names is None:
        raise InvalidSetting(
            "option 'topic' is missing: name a topic, or several with commas between them; "
            "or give 'names', a filter such as sensors/# over the names in all topics"
        )
    default = "latest" if use == STREAM else "earliest"
    start = _position(given, "starting", default, topics, now_us)
    end = _position(given, "ending", "latest", topics, now_us)
    if use == BATCH and given.get("startingOffsets") == "latest":
        raise InvalidSetting(
            "startingOffsets 'latest' leaves nothing to read in a batch: "
            "use earliest, an offset or startingTimestamp; or readStream"
        )
    if given.get("endingOffsets") == "earliest":
        raise InvalidSetting(
            "endingOffsets 'earliest' leaves nothing to read: use latest or an offset"
        )
    _checked(given, "where", _where)
    return SourceOptions(
        connection=_connection(given),
        topics=topics,
        names=names,
        start=start,
        end=end,
        records_max=_checked(given, "maxOffsetsPerTrigger", _count),
        pieces_min=_checked(given, "minPartitions", _count),
        fails_on_loss=_boolean(given, "failOnDataLoss", True),
        where=given.get("where"),
        finishes_windows=_boolean(given, "finishWindows", False),
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a write; InvalidSetting or another RefusedError."""
    given = _given(options, WRITE)
    if "idempotencyNumber" in given and "idempotencyKey" not in given:
        raise InvalidSetting("option 'idempotencyNumber' needs the option 'idempotencyKey'")
    return SinkOptions(
        _connection(given),
        _checked(given, "topic", _one_topic),
        _checked(given, "idempotencyKey", _key),
        _checked(given, "idempotencyNumber", _number) or 0,
    )


# Parts


def _given(options: Mapping[str, str], use: str) -> dict[str, str]:
    """The options by their own spelling; refuses what this use has no meaning for."""
    known = _OF_USE[use]
    given = {}
    for key, value in options.items():
        name = _SPELLED.get(key.lower(), "")
        if name not in known:
            if name:
                raise InvalidSetting(
                    f"option {name!r} cannot be used with {_USES[use]}; {_fit(use)}"
                )
            _unknown(key, known)
        given[name] = value
    return given


_USES: Final = {BATCH: "a batch read", STREAM: "a streaming read", WRITE: "a write"}


def _fit(use: str) -> str:
    names = [name for name in _OF_USE[use] if name not in ("subscribe", *_OF_SPARK)]
    return f"allowed options are {', '.join(names)}"


def _unknown(key: str, known: tuple[str, ...]) -> NoReturn:
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), lowered, 1)
    hint = f"did you mean {lowered[near[0]]!r}?" if near else f"known are {', '.join(known)}"
    raise InvalidSetting(f"option {quoted(key)} is unknown: {hint}")


def _topics(given: dict[str, str]) -> tuple[str, ...]:
    if "topic" in given and "subscribe" in given:
        raise InvalidSetting("options 'topic' and 'subscribe' mean the same: give one of them")
    text = given.get("topic", given.get("subscribe"))
    if text is None:
        return ()
    topics: dict[str, str] = {}
    for name in _json_list(text) or (part.strip() for part in text.split(",")):
        topics.setdefault(check_topic(name).casefold(), name)
    return tuple(topics.values())


def _one_topic(text: str) -> str:
    listed = _json_list(text)
    if len(listed) > 1 or (not listed and "," in text):
        raise InvalidSetting(
            f"{quoted(text)} names several topics, but a row is written to one topic: add a "
            "column topic. Write a name that contains a comma as a JSON list: "
            f"{topics_text([text])}"
        )
    return check_topic(listed[0] if listed else text)


def _json_list(text: str) -> list[str]:
    """The names in a list in JSON; none if it is something else, such as a topic called [x]."""
    if text.startswith("["):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=list[str])
    return []


def _connection(given: dict[str, str]) -> Connection:
    if "url" in given:
        return _remote(given)
    for name in ("user", "password", "token"):
        if name in given:
            raise InvalidSetting(
                f"option {name!r} can only be used with 'url': files need no login"
            )
    if "path" not in given:
        raise InvalidSetting(
            "neither 'path' nor 'url' is given: name the broker's data directory, or its address"
        )
    text = given["path"].removeprefix("file://")
    if not text or "://" in text:
        raise InvalidSetting(
            f"path {quoted(given['path'])} is not a directory on this machine: give the broker's "
            "data directory, or its address as 'url'"
        )
    return Connection(Path(text).absolute(), tenant=_tenant(given))


def _remote(given: dict[str, str]) -> Connection:
    if "path" in given:
        raise InvalidSetting("options 'path' and 'url' cannot be combined: give one of them")
    if ("user" in given) is not ("password" in given):
        raise InvalidSetting("options 'user' and 'password' go together: give both")
    if "token" in given and "user" in given:
        raise InvalidSetting("options 'token' and 'user' cannot be combined: give one of them")
    url = given["url"]
    if not url.startswith(("http://", "https://", unix_socket.SCHEME)):
        raise InvalidSetting(f"url {quoted(url)} is not a valid broker URL: write http://HOST:PORT")
    user, password, token = (given.get(name, "") for name in ("user", "password", "token"))
    return Connection(None, url, user, password=password, token=token, tenant=_tenant(given))


def _tenant(given: dict[str, str]) -> str:
    return _checked(given, "tenant", check_tenant) or ""


def _position(
    given: dict[str, str], edge: str, default: str, topics: tuple[str, ...], now_us: int
) -> Position | Places:
    offsets, timestamp = f"{edge}Offsets", f"{edge}Timestamp"
    if offsets in given and timestamp in given:
        raise InvalidSetting(
            f"options {offsets!r} and {timestamp!r} cannot be combined: give one of them"
        )
    if timestamp in given:
        return _checked(given, timestamp, lambda text: _time(text, now_us)) or AtTime(0)
    text = given.get(offsets, default).strip()
    if text.startswith("{"):
        return places_from_text(offsets, text)
    position = parse_position(text, now_us)
    if isinstance(position, AtTime):
        raise InvalidSetting(f"{offsets} {quoted(text)} is a time: give it as {timestamp!r}")
    if isinstance(position, AtOffset) and len(topics) != 1:
        raise InvalidSetting(
            f"{offsets} {quoted(text)} is an offset, which needs exactly one topic: give "
            f'JSON such as {{"{topics[0] if topics else "orders"}":{{"0":{text}}}}} instead'
        )
    return position


def _time(text: str, now_us: int) -> AtTime:
    if text.isascii() and text.isdigit() and len(text) < 18:
        return AtTime(int(text) * 1_000)
    position = parse_position(text, now_us)
    if not isinstance(position, AtTime):
        raise InvalidSetting(
            f"{quoted(text)} is not a time: give milliseconds since 1970, or RFC 3339"
        )
    return position


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:18]) > 0):
        raise InvalidSetting(f"{quoted(text)} is not a whole number above 0")
    return int(text[:18])


def _where(text: str) -> object:
    from penstock.core.where import compile_where  # most queries have none

    return compile_where(text)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 18):
        raise InvalidSetting(f"{quoted(text)} is not a whole number of 0 or more")
    return int(text)


def _key(text: str) -> str:
    if not 0 < len(text) <= KEY_CHARS_MAX:
        raise InvalidSetting(f"{quoted(text)} must have 1 to {KEY_CHARS_MAX} characters")
    return text


def _boolean(given: dict[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidSetting(f"{name} {quoted(given[name])} is neither true nor false")
    return text == "true"


def _checked(given: dict[str, str], name: str, check: Callable[[str], T]) -> T | None:
    """The checked value; a refusal begins with the option's name."""
    if name not in given:
        return None
    try:
        return check(given[name])
    except RefusedError as wrong:
        kind: Any = type(wrong)
        raise kind(f"{name}: {wrong}") from None
