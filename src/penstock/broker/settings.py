"""Settings of a broker and of its topics, checked once, with errors that name the way out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from typing import Any, Final

from penstock.core.durations import seconds
from penstock.core.quota_settings import QuotaSettings, read_quotas
from penstock.core.topic_settings import (
    FSYNC,
    REPLICATED,
    TOPIC_CHECKS,
    TOPIC_KEYS,
    check_keys,
    check_partitions,
    size_bytes,
)
from penstock.log.files.directory import FILES, KAFKA, POSTGRES
from penstock.log.history.place import S3
from penstock.log.interface import LogSettings
from penstock.model.errors import InvalidSetting
from penstock.model.limits import MIB, PAYLOAD_BYTES_MAX

_DAY_S: Final = 86_400.0
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,49}")  # and a suffix fits behind it
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_BOOTSTRAP: Final = re.compile(r"[^\s,:]+:[0-9]{1,5}(,[^\s,:]+:[0-9]{1,5})*")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")
URL_SCHEMES: Final = ("postgresql://", "postgres://")
_PASSWORDS: Final = (
    re.compile(r"(://[^:/?#]*:)[^/?#]*(?=@)"),
    re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE),
    # host=… password=…, as libpq takes it too: a value may be in quotes
    re.compile(
        r"((?:^|\s)(?:ssl)?password\s*=\s*)(?:'(?:\\.|[^'\\])*'?|(?:\\.|\S)+)", re.IGNORECASE
    ),
)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Everything a broker can be told; topic settings here are the defaults of new topics."""

    durability: str = FSYNC
    retention_age: float | None = 7 * _DAY_S  # seconds; None keeps for ever
    retention_bytes: int | None = None
    segment_bytes: int = 32 * MIB
    segment_age: float = _DAY_S
    history: bool = False
    history_age: float | None = None  # seconds; None keeps for ever
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    disk_free_percent_min: float = 5.0  # publishes are refused below it
    position_saves_max: int = 1_000  # unsaved positions that start a save
    position_save_s_max: float = 1.0  # and the time after which they are saved anyway
    upkeep_s: float = 5.0  # how often retention, sealing and free space are looked after
    catalog_url: str = ""  # a database of PostgreSQL; empty: SQLite in the data directory
    catalog_schema: str = "penstock"  # of that database
    log_backend: str = FILES  # where topics are stored: files, the catalog's database, or Kafka
    kafka_bootstrap: str = ""  # HOST:PORT of one or more brokers, with commas
    kafka_prefix: str = "penstock"  # what the names of our topics in Kafka begin with
    kafka_partitions: int = 16  # of a new topic
    kafka_replication: int = 3  # copies of every record
    kafka_tls_ca: str = ""  # a file of certificates, or `system`; empty: no TLS
    kafka_sasl_mechanism: str = ""  # empty: no login
    kafka_sasl_user: str = ""
    kafka_sasl_password_file: str = ""
    history_url: str = ""  # where histories are: a directory or s3://…; empty: nowhere
    history_options: dict[str, str] = field(default_factory=dict)  # of the object store
    quotas: QuotaSettings = field(default_factory=QuotaSettings)


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Of a server that shares its Kafka and its PostgreSQL with others."""

    name: str = ""  # for people; empty: made from its number
    lease_s: int = 3  # a node that does not renew its lease for so long counts as dead
    advertise: str = ""  # HOST:PORT where MQTT clients reach this node; empty: its first listener
    listen: str = "off"  # HOST:PORT of MQTT on this node alone, where others share its ports
    shares_ports: bool = False  # other nodes on this machine listen on the same ports
    http_listen: str = "off"  # HOST:PORT of HTTP on this node alone, where others share its ports
    http_advertise: str = ""  # URL where other nodes reach its HTTP; empty: made from its listener
    http_ca_file: str = ""  # authorities that sign the certificates of other nodes; empty: system's
    runs_jobs: bool = True  # has the bridges and jobs that the settings declare
    stop_delay_s: int = 0  # between SIGTERM, when `/readyz` turns to 503, and the end of serving


def make_settings(values: dict[str, Any]) -> BrokerSettings:
    """Settings from keyword arguments; an unknown key is an error with the nearest known one."""
    check_keys(values, [field.name for field in fields(BrokerSettings)])
    checked: dict[str, Any] = {key: _CHECKS[key](key, value) for key, value in values.items()}
    if checked.get("log_backend") == KAFKA:
        checked.setdefault("durability", REPLICATED)
    return replace(BrokerSettings(), **checked)


def check_storage(settings: BrokerSettings) -> None:
    """Refuse a choice of backends that does not work together."""
    if settings.log_backend == POSTGRES and not settings.catalog_url:
        raise InvalidSetting(
            "topics in PostgreSQL need a catalog in PostgreSQL: give its URL too ([catalog] url,"
            " catalog_url=…), or store topics in files ([log] backend)"
        )
    if settings.history_url and settings.log_backend != FILES:
        raise InvalidSetting(
            f"[history] url {settings.history_url!r} needs topics in files: a history is made of "
            f"sealed segments, and [log] backend {settings.log_backend!r} has none; use the job "
            "`archive` there"
        )
    if settings.history_url and find_spec("deltalake") is None:
        raise InvalidSetting(
            "[history] url needs the packages pyarrow and deltalake: pip install "
            "'penstock[history]'"
        )
    if settings.history and not settings.history_url:
        raise InvalidSetting(
            "history = true needs a place for the tables: give [history] url, a directory or "
            "s3://BUCKET/PREFIX"
        )
    if settings.log_backend != KAFKA:
        return
    if not settings.kafka_bootstrap:
        raise InvalidSetting(
            "topics in Kafka need the addresses of its brokers: set [kafka] bootstrap ="
            ' "HOST:PORT,HOST:PORT" (kafka_bootstrap=…), or store topics in files ([log] backend)'
        )
    if bool(settings.kafka_sasl_mechanism) != bool(settings.kafka_sasl_user):
        raise InvalidSetting(
            "a login to Kafka needs [kafka] sasl_mechanism, sasl_user and sasl_password_file: set "
            "all of them, or none"
        )
    if settings.kafka_sasl_user and not settings.kafka_sasl_password_file:
        raise InvalidSetting(
            f"[kafka] sasl_user {settings.kafka_sasl_user!r} has no password: set "
            "sasl_password_file to a file that contains it"
        )


def topic_settings(defaults: BrokerSettings, values: dict[str, Any]) -> LogSettings:
    """Settings of one topic: the broker's defaults, changed by `values`."""
    partitions = defaults.kafka_partitions if defaults.log_backend == KAFKA else 1
    return _merged(defaults, values, partitions)


def _merged(defaults: BrokerSettings, values: dict[str, Any], partitions: int) -> LogSettings:
    check_keys(values, TOPIC_KEYS)
    keys = [key for key in TOPIC_KEYS if key != "partitions"]
    s = make_settings({key: value for key, value in values.items() if key in keys})
    merged = {key: getattr(s if key in values else defaults, key) for key in keys}
    if "partitions" in values:
        partitions = check_partitions("partitions", values["partitions"])
    return LogSettings(
        durability=merged["durability"],
        retention_age_s=merged["retention_age"],
        retention_bytes=merged["retention_bytes"],
        segment_bytes=merged["segment_bytes"],
        segment_age_s=merged["segment_age"],
        history=merged["history"],
        history_age_s=merged["history_age"],
        partitions=partitions,
    )


def altered(settings: LogSettings, values: dict[str, Any]) -> LogSettings:
    """The settings of a topic with some of them changed."""
    current = BrokerSettings(
        durability=settings.durability,
        retention_age=settings.retention_age_s,
        retention_bytes=settings.retention_bytes,
        segment_bytes=settings.segment_bytes,
        segment_age=settings.segment_age_s,
        history=settings.history,
        history_age=settings.history_age_s,
    )
    return _merged(current, values, settings.partitions)


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
        f"{key} {mask_password(str(value))!r} is not the URL of a PostgreSQL database: write"
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
            f"{key} {value!r} is not a valid schema name: use up to 50 lower-case letters, digits"
            " and '_', not beginning with a digit or pg_"
        )
    return value


def _backend(key: str, value: object) -> str:
    if value not in (FILES, POSTGRES, KAFKA):
        raise InvalidSetting(f"{key} {value!r} is unknown: use 'files', 'postgres' or 'kafka'")
    return str(value)


def _history_url(key: str, value: object) -> str:
    if isinstance(value, str) and ("://" not in value or value.startswith(S3)):
        return value
    raise InvalidSetting(
        f"{key} {mask_password(str(value))!r} is not a place for histories: use a directory, or "
        "s3://BUCKET/PREFIX"
    )


def _options(key: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidSetting(f"{key} is not a table: write [history.options]")
    for option, one in value.items():
        if not isinstance(one, str):  # which may be a secret
            raise InvalidSetting(f"{key}: the value of {option!r} is not a text: put it in quotes")
    return value


def _bootstrap(key: str, value: object) -> str:
    if value == "" or (isinstance(value, str) and _BOOTSTRAP.fullmatch(value)):
        return str(value)
    raise InvalidSetting(
        f"{key} {value!r} is not a list of addresses: write HOST:PORT, several with commas"
    )


def _prefix(key: str, value: object) -> str:
    if isinstance(value, str) and _PREFIX.fullmatch(value):
        return value
    raise InvalidSetting(
        f"{key} {value!r} cannot begin the names of topics in Kafka: use 1 to 60 letters, digits, "
        "'_' or '-'"
    )


def _replication(key: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 100:
        return value
    raise InvalidSetting(f"{key} {value!r} is not a number of copies: use 1 to 100")


def _mechanism(key: str, value: object) -> str:
    if value not in ("", *SASL_MECHANISMS):
        known = ", ".join(map(repr, SASL_MECHANISMS))
        raise InvalidSetting(f"{key} {value!r} is unknown: use one of {known}, or '' for no login")
    return str(value)


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidSetting(f"{key} {value!r} is not text")
    return value


_CHECKS: Final = {
    **TOPIC_CHECKS,
    "payload_bytes_max": _payload_bytes,
    "disk_free_percent_min": _percent,
    "position_saves_max": _count,
    "position_save_s_max": seconds,
    "upkeep_s": seconds,
    "catalog_url": _database_url,
    "catalog_schema": _schema,
    "log_backend": _backend,
    "history_url": _history_url,
    "history_options": _options,
    "kafka_bootstrap": _bootstrap,
    "kafka_prefix": _prefix,
    "kafka_partitions": check_partitions,
    "kafka_replication": _replication,
    "kafka_tls_ca": _text,
    "kafka_sasl_mechanism": _mechanism,
    "kafka_sasl_user": _text,
    "kafka_sasl_password_file": _text,
    "quotas": read_quotas,
}
