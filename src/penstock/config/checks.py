"""One setting, and how its value is checked: InvalidSetting gives key, value and rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.broker.settings import make_settings
from penstock.config.defaults import variable_of
from penstock.core.durations import seconds
from penstock.core.masking import without_login
from penstock.core.proxies import parse_networks
from penstock.core.topic_settings import is_unlimited, size_bytes
from penstock.doors.http.pages import parse_origins
from penstock.model.errors import InvalidSetting

OFF: Final = "off"
OPTIONAL: Final = "optional"
REQUIRED: Final = "required"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key: what it defaults to, how a value is checked, and what to tell people."""

    path: str  # table and key, with dots
    default: Any
    check: Callable[[str, Any], Any]  # (key, value) -> value; raises InvalidSetting
    says: str

    @property
    def table(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def key(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def variable(self) -> str:
        return variable_of(self.path)


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT; an IPv6 host is in brackets."""
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdigit()
    if not separator or not host or "/" in host or not is_number or int(port) > 65_535:
        raise InvalidSetting(
            f"{text!r} is not a valid address: use HOST:PORT, such as 127.0.0.1:1883"
        )
    return host, int(port)


def address(key: str, value: Any) -> str:
    given = text(key, value)
    if given != OFF:
        try:
            parse_address(given)
        except InvalidSetting as wrong:
            raise InvalidSetting(f"{key}: {wrong}, or 'off'") from None
    return given


def text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidSetting(f"{key} {value!r} is not a string: write it in quotes")
    if not value:
        raise InvalidSetting(f"{key} '' is empty: give a value, or leave it out for the default")
    return value


def directory(key: str, value: Any) -> str:
    given = text(key, value)
    if "://" in given:
        # A broker that served it would make a directory of this name.
        raise InvalidSetting(
            f"{key} {without_login(given)!r} is a URL: give the directory of the broker's files"
        )
    return given


def file(key: str, value: Any) -> str:
    """A path; the empty text means none."""
    return optional_text(key, value)


def optional_text(key: str, value: Any) -> str:
    """A text; the empty one means that there is none."""
    return "" if value == "" else text(key, value)


def yes_or_no(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidSetting(f"{key} {value!r} is neither true nor false")
    return value


def whole_number(key: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidSetting(f"{key} {value!r} is not a whole number from {least} to {most}")
    return value


def duration(key: str, value: Any) -> Any:
    seconds(key, value)
    return value  # as it was written


def duration_or_unlimited(key: str, value: Any) -> Any:
    return value if is_unlimited(value) else duration(key, value)


def one_of(*choices: str) -> Callable[[str, Any], str]:
    """A check that takes one of these texts."""

    def check(key: str, value: Any) -> str:
        if value not in choices:
            allowed = ", ".join(map(repr, choices[:-1]))
            raise InvalidSetting(f"{key} {value!r} is unknown: use {allowed} or {choices[-1]!r}")
        return str(value)

    return check


def certificates(key: str, value: Any) -> str:
    if value not in (OPTIONAL, REQUIRED):
        raise InvalidSetting(f"{key} {value!r} is neither 'optional' nor 'required'")
    return str(value)


def size(key: str, value: Any) -> Any:
    size_bytes(key, value)
    return value


def origins(key: str, value: Any) -> str:
    return " ".join(parse_origins(key, value))


def networks(key: str, value: Any) -> str:
    given = "" if value == "" else text(key, value)
    return " ".join(str(network) for network in parse_networks(key, given))


def connect_server(key: str, value: Any) -> str:
    if value != "" and not text(key, value).startswith("sc://"):
        raise InvalidSetting(f"{key} {value!r} is not a Spark Connect URL: write 'sc://HOST:15002'")
    return str(value)


def of_broker(name: str) -> Callable[[str, Any], Any]:
    """A check that the broker's own settings have already."""

    def check(key: str, value: Any) -> Any:
        make_settings({name: value})
        return value

    return check
