"""The settings of a server: one TOML file, the environment, flags, and defaults below them.

A flag wins over `PENSTOCK_SECTION__KEY`, that over the file, that over the default. SETTINGS is
the whole list of keys: reading, the template of `config init`, and what `serve --check` prints come
from it. An unknown key is an error that names the nearest known one; a wrong value is an error that
says where it stands, what it is and what it should be. Nothing else in Penstock reads the
environment.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.broker.settings import BrokerSettings, make_settings, seconds, size_bytes
from penstock.core.bus import PROCESSES_MAX
from penstock.core.names import check_filter, check_topic
from penstock.doors.http.limits import HttpLimits
from penstock.doors.http.pages import parse_origins
from penstock.doors.mqtt.limits import MqttLimits
from penstock.model.errors import InvalidSetting, RefusedError

OFF: Final = "off"
DEFAULT_DATA: Final = "./penstock_data"
PREFIX: Final = "PENSTOCK_"
OPTIONAL: Final = "optional"
REQUIRED: Final = "required"

_BROKER: Final = BrokerSettings()
_LIMITS: Final = MqttLimits()
_HTTP: Final = HttpLimits()


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
        return PREFIX + self.path.replace(".", "__").upper()


@dataclass(frozen=True, slots=True)
class Binding:
    """Names that match `filter` are placed in `topic`, which is created if it is missing."""

    filter: str
    topic: str


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What a TLS listener needs."""

    cert: Path
    key: Path | None  # None: it is in the same file
    client_ca: Path | None
    demands_client: bool


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything `penstock serve` can be told. `off` leaves a listener closed."""

    data: Path
    mqtt: str
    mqtts: str
    tls: TlsFiles | None
    mqtt_limits: MqttLimits
    http: str
    https: str
    http_tls: TlsFiles | None
    http_limits: HttpLimits
    bus: str
    bus_processes_max: int
    broker: dict[str, Any]
    bindings: tuple[Binding, ...]
    allow_anonymous: bool


@dataclass(frozen=True, slots=True)
class Effective:
    """All values that hold, and where each comes from."""

    values: dict[str, Any]  # by path
    origins: dict[str, str]
    bindings: tuple[Binding, ...]


# Checks


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT; an IPv6 host stands in brackets."""
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdigit()
    if not separator or not host or not is_number or int(port) > 65_535:
        raise InvalidSetting(f"address {text!r} is not HOST:PORT, such as 127.0.0.1:1883")
    return host, int(port)


def _address(key: str, value: Any) -> str:
    text = _text(key, value)
    if text != OFF:
        try:
            parse_address(text)
        except InvalidSetting as wrong:
            raise InvalidSetting(f"{key}: {wrong}, or 'off'") from None
    return text


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidSetting(f"{key} {value!r} is not a text: write it in quotes")
    return value


def _file(key: str, value: Any) -> str:
    """A path; the empty text means none."""
    return "" if value == "" else _text(key, value)


def _yes_or_no(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidSetting(f"{key} {value!r} is neither true nor false")
    return value


def _whole_number(key: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidSetting(f"{key} {value!r} is not a whole number from {least} to {most}")
    return value


def _duration(key: str, value: Any) -> Any:
    seconds(key, value)
    return value  # as it was written


def _certificates(key: str, value: Any) -> str:
    if value not in (OPTIONAL, REQUIRED):
        raise InvalidSetting(f"{key} {value!r} is neither 'optional' nor 'required'")
    return str(value)


def _size(key: str, value: Any) -> Any:
    size_bytes(key, value)
    return value


def _origins(key: str, value: Any) -> str:
    return " ".join(parse_origins(key, value))


def _of_broker(name: str) -> Callable[[str, Any], Any]:
    """A check that the broker's own settings have already."""

    def check(key: str, value: Any) -> Any:
        make_settings({name: value})
        return value

    return check


SETTINGS: Final = (
    Setting("server.data", DEFAULT_DATA, _text, "data directory"),
    Setting("mqtt.listen", "127.0.0.1:1883", _address, "where MQTT clients connect, or 'off'"),
    Setting("mqtt.tls_listen", OFF, _address, "the same with TLS; its usual port is 8883"),
    Setting("mqtt.tls_cert", "", _file, "the server's certificate and chain, PEM"),
    Setting("mqtt.tls_key", "", _file, "its private key, PEM; empty if it is in tls_cert"),
    Setting(
        "mqtt.tls_client_ca",
        "",
        _file,
        "who signs client certificates; their common name becomes the user",
    ),
    Setting(
        "mqtt.tls_client_certificates",
        OPTIONAL,
        _certificates,
        "'optional': without one a client logs in with a password; or 'required'",
    ),
    Setting(
        "mqtt.connect_timeout",
        f"{_LIMITS.connect_s_max:g}s",
        _duration,
        "time for a client to connect and log in",
    ),
    Setting(
        "mqtt.connections_max",
        _LIMITS.connections_max,
        lambda key, value: _whole_number(key, value, 1, 10_000_000),
        "more are refused",
    ),
    Setting(
        "mqtt.keep_alive_s_max",
        _LIMITS.keep_alive_s_max,
        lambda key, value: _whole_number(key, value, 0, 65_535),
        "longest keep alive of an MQTT 5 client, in seconds; 0: no limit",
    ),
    Setting(
        "mqtt.sys_interval_s",
        _LIMITS.sys_interval_s,
        lambda key, value: _whole_number(key, value, 0, 65_535),
        "seconds between looks at $SYS/broker/…; 0: nothing is said there",
    ),
    Setting("http.listen", "127.0.0.1:8090", _address, "where HTTP clients connect, or 'off'"),
    Setting("http.tls_listen", OFF, _address, "the same with TLS; its usual port is 8443"),
    Setting("http.tls_cert", "", _file, "its certificate and chain, PEM; empty: that of [mqtt]"),
    Setting("http.tls_key", "", _file, "its private key, PEM; empty if it is in tls_cert"),
    Setting(
        "http.origins",
        "",
        _origins,
        "web pages that may ask beside our own, with spaces between: 'https://a.example'; or '*'",
    ),
    Setting(
        "http.connections_max",
        _HTTP.connections_max,
        lambda key, value: _whole_number(key, value, 1, 10_000_000),
        "more are refused",
    ),
    Setting("http.body_bytes_max", "32 MiB", _size, "largest body of a request"),
    Setting("http.head_timeout", f"{_HTTP.head_s_max:g}s", _duration, "time for the headers"),
    Setting("http.body_timeout", f"{_HTTP.body_s_max:g}s", _duration, "time for the body"),
    Setting("http.idle_timeout", f"{_HTTP.idle_s_max:g}s", _duration, "between two requests"),
    Setting(
        "http.send_timeout",
        f"{_HTTP.send_s_max:g}s",
        _duration,
        "for a client that takes nothing of its answer",
    ),
    Setting("bus.path", OFF, _text, "where the socket of the local bus is, or 'off'"),
    Setting(
        "bus.processes_max",
        PROCESSES_MAX,
        lambda key, value: _whole_number(key, value, 1, 10_000),
        "processes that may subscribe on the bus",
    ),
    Setting(
        "mqtt.will_grace_s",
        _LIMITS.will_grace_s,
        lambda key, value: _whole_number(key, value, 0, 86_400),
        "seconds after a start for clients to come back before wills are published",
    ),
    Setting(
        "topics.defaults.durability",
        _BROKER.durability,
        _of_broker("durability"),
        "what an acknowledgement means: 'fsync', on disk, or 'os', handed to the system",
    ),
    Setting(
        "topics.defaults.retention_age",
        "7d",
        _of_broker("retention_age"),
        "records older than this go; or 'unlimited'",
    ),
    Setting(
        "topics.defaults.retention_bytes",
        "unlimited",
        _of_broker("retention_bytes"),
        "the oldest records of a larger topic go; '10 GiB', or 'unlimited'",
    ),
    Setting("log.segment_bytes", "32 MiB", _of_broker("segment_bytes"), "size of a closed file"),
    Setting("log.segment_age", "1d", _of_broker("segment_age"), "a file is closed at this age"),
    Setting(
        "log.payload_bytes_max",
        "16 MiB",
        _of_broker("payload_bytes_max"),
        "largest message, at most 16 MiB",
    ),
    Setting(
        "log.disk_free_percent_min",
        _BROKER.disk_free_percent_min,
        _of_broker("disk_free_percent_min"),
        "publishes are refused below it",
    ),
    Setting(
        "log.upkeep_every",
        f"{_BROKER.upkeep_s:g}s",
        _duration,
        "how often retention, sealing and free space are looked after",
    ),
    Setting(
        "catalog.url",
        _BROKER.catalog_url,
        _of_broker("catalog_url"),
        "PostgreSQL instead of SQLite: 'postgresql://USER@HOST:PORT/DATABASE'",
    ),
    Setting(
        "catalog.schema",
        _BROKER.catalog_schema,
        _of_broker("catalog_schema"),
        "where the tables are in that database; one broker has it at a time",
    ),
    Setting(
        "catalog.position_saves_max",
        _BROKER.position_saves_max,
        _of_broker("position_saves_max"),
        "as many moved positions are saved at once",
    ),
    Setting(
        "catalog.position_save_every",
        f"{_BROKER.position_save_s_max:g}s",
        _duration,
        "and at the latest after this time",
    ),
    Setting(
        "access.allow_anonymous",
        False,
        _yes_or_no,
        "let clients in without a login, from every address",
    ),
)
_BY_PATH: Final = {setting.path: setting for setting in SETTINGS}
# Where BrokerSettings calls a key otherwise than the file does.
_BROKER_NAMES: Final = {
    "upkeep_every": "upkeep_s",
    "position_save_every": "position_save_s_max",
    "url": "catalog_url",
    "schema": "catalog_schema",
}
_STORAGE: Final = ("catalog.url", "catalog.schema")
_BROKER_TABLES: Final = ("topics.defaults", "log", "catalog")


# Reading


def environment() -> dict[str, str]:
    return dict(os.environ)


def default_target() -> str:
    """The data directory of commands that are not told one."""
    return os.environ.get("PENSTOCK_AT", DEFAULT_DATA)


def default_key() -> str:
    """The key that commands log in with at a broker, if they are not told another one."""
    return os.environ.get("PENSTOCK_KEY", "")


def storage_settings(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Where a data directory keeps things, for commands that open it and know no settings file."""
    given = environment() if variables is None else variables
    known = [_BY_PATH[path].variable for path in _STORAGE]
    values = load(None, {}, {name: given[name] for name in known if name in given}).values
    return {_BROKER_NAMES[path.partition(".")[2]]: values[path] for path in _STORAGE}


def load(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Effective:
    """Put the sources together; `flags` are by path, and hold only what was given."""
    values = {setting.path: setting.default for setting in SETTINGS}
    origins = dict.fromkeys(values, "default")
    bindings: tuple[Binding, ...] = ()
    given: list[tuple[str, Any, str]] = []
    if file is not None:
        document = _read(file)
        bindings = _read_bindings(document.pop("bindings", []), str(file))
        given += [(path, value, str(file)) for path, value in _flatten(document, str(file))]
    for variable, text in (environment() if variables is None else variables).items():
        # One without a double underscore is no setting: PENSTOCK_AT, say.
        if variable.startswith(PREFIX) and "__" in variable:
            path = variable.removeprefix(PREFIX).replace("__", ".").lower()
            given.append((path, _from_text(path, text), variable))
    given += [(path, value, "flag") for path, value in (flags or {}).items()]
    for path, value, origin in given:
        setting = _BY_PATH.get(path) or _unknown(path, origin)
        try:
            values[path] = setting.check(setting.key, value)
        except InvalidSetting as wrong:
            raise InvalidSetting(f"{origin}: [{setting.table}] {wrong}") from None
        origins[path] = origin
    return Effective(values, origins, bindings)


def _from_text(path: str, text: str) -> Any:
    """The environment has only text: read it as what the setting is."""
    default = _BY_PATH[path].default if path in _BY_PATH else ""
    if isinstance(default, bool):
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if isinstance(default, int | float):
        for kind in (int, float):
            with suppress(ValueError):
                return kind(text)
    return text


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as failed:
        raise InvalidSetting(f"{file} cannot be read: {failed.strerror}") from failed
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise InvalidSetting(f"{file} is not TOML: {wrong}") from wrong


def _flatten(table: dict[str, Any], origin: str, above: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        path = f"{above}{key}"
        is_table = any(known.startswith(f"{path}.") for known in _BY_PATH)
        if isinstance(value, dict):
            if not is_table:
                _unknown(path, origin)
            found += _flatten(value, origin, f"{path}.")
        elif is_table:
            raise InvalidSetting(f"{origin}: {path} {value!r} is not a table: write [{path}]")
        else:
            found.append((path, value))
    return found


def _unknown(path: str, origin: str) -> Setting:
    tables = sorted({setting.table for setting in SETTINGS} | {"bindings"})
    near = difflib.get_close_matches(path, [*_BY_PATH, *tables], 1)
    if not near:  # the right key in the wrong table, perhaps
        key = path.rpartition(".")[2]
        near = [known for known in _BY_PATH if known.endswith(f".{key}")][:1]
    hint = f"did you mean {near[0]!r}?" if near else f"tables are {', '.join(tables)}"
    raise InvalidSetting(f"{origin}: setting {path!r} is unknown: {hint}")


def _read_bindings(rows: Any, origin: str) -> tuple[Binding, ...]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InvalidSetting(f"{origin}: bindings {rows!r} is not a list: write [[bindings]]")
    found = []
    for row in rows:
        if row.keys() != {"filter", "topic"}:
            raise InvalidSetting(
                f"{origin}: [[bindings]] {row!r} must have exactly the keys 'filter' and 'topic'"
            )
        try:
            found.append(Binding(check_filter(row["filter"]), check_topic(row["topic"])))
        except RefusedError as wrong:
            raise InvalidSetting(f"{origin}: [[bindings]] {wrong}") from None
    return tuple(found)


def server_settings(effective: Effective) -> ServerSettings:
    """What the server is made from; InvalidSetting where two values do not fit together."""
    values = effective.values
    broker = {
        _BROKER_NAMES.get(setting.key, setting.key): values[setting.path]
        for setting in SETTINGS
        if setting.table in _BROKER_TABLES
    }
    return ServerSettings(
        Path(values["server.data"]),
        values["mqtt.listen"],
        values["mqtt.tls_listen"],
        _tls_files(values),
        MqttLimits(
            seconds("connect_timeout", values["mqtt.connect_timeout"]),
            values["mqtt.connections_max"],
            values["mqtt.keep_alive_s_max"],
            values["mqtt.will_grace_s"],
            values["mqtt.sys_interval_s"],
        ),
        values["http.listen"],
        values["http.tls_listen"],
        _http_tls_files(values),
        _http_limits(values),
        values["bus.path"],
        values["bus.processes_max"],
        broker,
        effective.bindings,
        values["access.allow_anonymous"],
    )


def _http_limits(values: dict[str, Any]) -> HttpLimits:
    return HttpLimits(
        connections_max=values["http.connections_max"],
        body_bytes_max=size_bytes("body_bytes_max", values["http.body_bytes_max"]),
        head_s_max=seconds("head_timeout", values["http.head_timeout"]),
        body_s_max=seconds("body_timeout", values["http.body_timeout"]),
        idle_s_max=seconds("idle_timeout", values["http.idle_timeout"]),
        send_s_max=seconds("send_timeout", values["http.send_timeout"]),
        origins=tuple(values["http.origins"].split()),
    )


def _http_tls_files(values: dict[str, Any]) -> TlsFiles | None:
    if values["http.tls_listen"] == OFF:
        return None
    table = "http" if values["http.tls_cert"] else "mqtt"
    cert, key = values[f"{table}.tls_cert"], values[f"{table}.tls_key"]
    if not cert:
        raise InvalidSetting(
            f"[http] tls_listen {values['http.tls_listen']!r} needs a certificate: "
            "set tls_cert and tls_key (--tls-cert, --tls-key)"
        )
    return TlsFiles(Path(cert), Path(key) if key else None, None, False)


def _tls_files(values: dict[str, Any]) -> TlsFiles | None:
    cert, key, client_ca = (
        values[f"mqtt.{name}"] for name in ("tls_cert", "tls_key", "tls_client_ca")
    )
    demands_client = values["mqtt.tls_client_certificates"] == REQUIRED
    if values["mqtt.tls_listen"] == OFF:
        return None
    if not cert:
        raise InvalidSetting(
            f"[mqtt] tls_listen {values['mqtt.tls_listen']!r} needs a certificate: "
            "set tls_cert and tls_key (--tls-cert, --tls-key)"
        )
    if demands_client and not client_ca:
        raise InvalidSetting(
            "[mqtt] tls_client_certificates 'required' needs to know who signs them: "
            "set tls_client_ca (--tls-client-ca)"
        )
    return TlsFiles(
        Path(cert),
        Path(key) if key else None,
        Path(client_ca) if client_ca else None,
        demands_client,
    )
