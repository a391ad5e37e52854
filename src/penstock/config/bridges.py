"""`[[bridges]]` of the settings file: other MQTT brokers to exchange messages with.

InvalidSetting names the file, the bridge, the key, its value and the rule. Whether the role and the
tenant exist is known only to a running broker.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.config.checks import one_of, optional_text, text, whole_number, yes_or_no
from penstock.config.rows import check_keys, tables
from penstock.core.access import CLIENT, check_role_name
from penstock.core.naming.bridged_names import DIRECTIONS, OUT, BridgeTopic
from penstock.core.naming.names import SHARE_PREFIX, check_filter, check_tenant
from penstock.doors.bridge.settings import (
    IN_FLIGHT_MAX,
    IN_FLIGHT_MAX_OLD,
    KEEP_ALIVE_S,
    BridgeSettings,
)
from penstock.model.errors import InvalidSetting, RefusedError
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5

NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
VERSIONS: Final = {"5": MQTT_5, "3.1.1": MQTT_3_1_1}
TOPICS_MAX: Final = 1_000  # of one bridge: one SUBSCRIBE has them all
NEEDED: Final = {"name", "address", "topics"}
OPTIONAL: Final = {
    *("version", "client_id", "user", "password_file", "tls_ca", "tls_cert", "tls_key"),
    *("keep_alive_s", "in_flight_max", "clean_start", "bridge_bit", "role", "tenant"),
}
TOPIC_OPTIONAL: Final = {"direction", "qos", "local_prefix", "remote_prefix"}


def read_bridges(rows: Any, origin: str) -> tuple[BridgeSettings, ...]:
    found: dict[str, BridgeSettings] = {}
    for row in tables(rows, "bridges", origin):
        check_keys(row, "bridges", NEEDED, OPTIONAL, origin)
        name = row["name"]
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidSetting(
                f"{origin}: [[bridges]] name {name!r} is not valid: use 1 to 63 small letters, "
                "digits, '-' and '_', beginning with a letter or digit"
            )
        if name in found:
            raise InvalidSetting(
                f"{origin}: [[bridges]] name {name!r} is used twice: give each bridge its own name"
            )
        try:
            found[name] = _bridge(row, name, origin)
        except RefusedError as wrong:
            raise InvalidSetting(f"{origin}: [[bridges]] {name!r}: {wrong}") from None
    _check_client_ids(tuple(found.values()), origin)
    return tuple(found.values())


def _bridge(row: dict[str, Any], name: str, origin: str) -> BridgeSettings:
    scheme, host, port = _address(row["address"])
    is_tls = scheme == "mqtts"
    paths = {key: _path(row, key) for key in ("password_file", "tls_ca", "tls_cert", "tls_key")}
    given_tls = [key for key in ("tls_ca", "tls_cert", "tls_key") if paths[key] is not None]
    if given_tls and not is_tls:
        raise InvalidSetting(
            f"{given_tls[0]} is set, but address {row['address']!r} does not use TLS: write "
            "'mqtts://…'"
        )
    if paths["tls_key"] is not None and paths["tls_cert"] is None:
        raise InvalidSetting("tls_key needs the certificate of that key: set tls_cert")
    user = optional_text("user", row.get("user", ""))
    if paths["password_file"] is not None and not user:
        raise InvalidSetting("password_file needs the user of that password: set user")
    version = VERSIONS[one_of(*VERSIONS)("version", row.get("version", "5"))]
    in_flight_max = row.get(
        "in_flight_max", IN_FLIGHT_MAX if version == MQTT_5 else IN_FLIGHT_MAX_OLD
    )
    return BridgeSettings(
        name=name,
        host=host,
        port=port,
        topics=tuple(_topics(row["topics"], name, origin)),
        is_tls=is_tls,
        version=version,
        client_id=text("client_id", row.get("client_id", f"penstock-{name}")),
        user=user,
        **paths,
        keep_alive_s=whole_number("keep_alive_s", row.get("keep_alive_s", KEEP_ALIVE_S), 5, 65_535),
        in_flight_max=whole_number("in_flight_max", in_flight_max, 1, 1_000),
        clean_start=yes_or_no("clean_start", row.get("clean_start", False)),
        bridge_bit=yes_or_no("bridge_bit", row.get("bridge_bit", True)),
        role=check_role_name(row.get("role", CLIENT)),
        tenant=TenantId(check_tenant(row.get("tenant", DEFAULT_TENANT))),
    )


def _address(value: Any) -> tuple[str, str, int]:
    given = text("address", value)
    wrong = InvalidSetting(
        f"address {given!r} is not valid: write 'mqtt://HOST:PORT' or 'mqtts://HOST:PORT'"
    )
    try:
        parts = urlsplit(given)
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.username is not None or parts.password is not None:
        raise InvalidSetting(
            "address contains a login: give it with the keys user and password_file"
        )
    is_longer = parts.path not in ("", "/") or parts.query or parts.fragment
    if parts.scheme not in PORTS or not parts.hostname or is_longer or port == 0:
        raise wrong
    return parts.scheme, parts.hostname, port or PORTS[parts.scheme]


def _path(row: dict[str, Any], key: str) -> Path | None:
    given = optional_text(key, row.get(key, ""))
    return Path(given) if given else None


def _topics(rows: Any, name: str, origin: str) -> list[BridgeTopic]:
    given = tables(rows, "bridges.topics", origin)
    if not 1 <= len(given) <= TOPICS_MAX:
        raise InvalidSetting(
            f"topics has {len(given)} entries: give 1 to {TOPICS_MAX}, each as [[bridges.topics]]"
        )
    for row in given:
        check_keys(row, "bridges.topics", {"filter"}, TOPIC_OPTIONAL, f"{origin}: bridge {name!r}")
    return [_topic(row) for row in given]


def _topic(row: dict[str, Any]) -> BridgeTopic:
    topic = BridgeTopic(
        text("filter", row["filter"]),
        one_of(*DIRECTIONS)("direction", row.get("direction", OUT)),
        whole_number("qos", row.get("qos", 1), 0, 2),
        _prefix(row, "local_prefix"),
        _prefix(row, "remote_prefix"),
    )
    for filter in (topic.local_filter, topic.remote_filter):
        if check_filter(filter).startswith(SHARE_PREFIX):
            raise InvalidSetting(
                f"filter {filter!r} is a shared subscription: a bridge needs every message; "
                "leave out '$share/GROUP/'"
            )
    return topic


def _prefix(row: dict[str, Any], key: str) -> str:
    given = optional_text(key, row.get(key, ""))
    for char in "+#":
        if char in given:
            raise InvalidSetting(
                f"{key} {given!r} contains {char!r}: wildcards belong in filter, not in a prefix"
            )
    return given


def shown_bridge(bridge: BridgeSettings) -> dict[str, Any]:
    """The keys of the settings file that make this bridge; without those that are not set."""
    versions = {version: name for name, version in VERSIONS.items()}
    keys = {
        "name": bridge.name,
        "address": bridge.address,
        "version": versions[bridge.version],
        "client_id": bridge.client_id,
        "user": bridge.user,
        "password_file": str(bridge.password_file or ""),
        "tls_ca": str(bridge.tls_ca or ""),
        "tls_cert": str(bridge.tls_cert or ""),
        "tls_key": str(bridge.tls_key or ""),
        "keep_alive_s": bridge.keep_alive_s,
        "in_flight_max": bridge.in_flight_max,
        "clean_start": bridge.clean_start,
        "bridge_bit": bridge.bridge_bit,
        "role": bridge.role,
        "tenant": bridge.tenant,
        "topics": [asdict(topic) for topic in bridge.topics],
    }
    return {key: value for key, value in keys.items() if value != ""}


def _check_client_ids(bridges: tuple[BridgeSettings, ...], origin: str) -> None:
    """Two bridges to one broker with one client id would throw each other out for ever."""
    used: dict[tuple[str, int, str], str] = {}
    for one in bridges:
        key = (one.host, one.port, one.client_id)
        if key in used:
            raise InvalidSetting(
                f"{origin}: [[bridges]] {used[key]!r} and {one.name!r} connect to {one.address} "
                f"with the same client_id {one.client_id!r}: give each its own"
            )
        used[key] = one.name
