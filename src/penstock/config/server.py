"""What a server is made from: the settings that hold, in the shapes its parts take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.broker.access import CertificateRules
from penstock.broker.access.tokens import TokenSettings
from penstock.broker.session.session import NEVER_EXPIRES
from penstock.broker.settings import NodeSettings, check_storage, make_settings
from penstock.config.checks import OFF, REQUIRED
from penstock.config.known import BROKER_NAMES, BROKER_TABLES, SETTINGS
from penstock.config.reading import DEFAULT, Binding, Effective, chosen_master
from penstock.core.durations import seconds
from penstock.core.proxies import TrustedProxies, parse_networks
from penstock.core.topic_settings import is_unlimited, size_bytes
from penstock.doors.http.limits import HttpLimits
from penstock.doors.mqtt.limits import MqttLimits
from penstock.doors.tls.context import TlsFiles
from penstock.log.files.directory import KAFKA
from penstock.model.errors import InvalidSetting

if TYPE_CHECKING:
    from penstock.broker.access import DeclaredRole, DeclaredRule
    from penstock.doors.bridge.settings import BridgeSettings
    from penstock.pipeline.schedule import Scheduled


@dataclass(frozen=True, slots=True)
class FirstUser:
    """The user that a broker without users begins with."""

    name: str
    password_file: Path


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything `penstock serve` can be told. `off` leaves a listener closed."""

    data: Path
    log_level: str
    log_format: str
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
    schedule: tuple[Scheduled, ...]
    jobs_max: int
    spark_master: str
    tokens: TokenSettings | None  # None: tokens are not accepted
    proxies: TrustedProxies
    certificates: CertificateRules
    first_user: FirstUser | None = None
    roles: tuple[DeclaredRole, ...] = ()
    rules: tuple[DeclaredRule, ...] = ()
    bridges: tuple[BridgeSettings, ...] = ()
    node: NodeSettings | None = None  # None: this broker has its catalog for itself


def server_settings(effective: Effective) -> ServerSettings:
    """What the server is made from; InvalidSetting where two values do not fit together."""
    values = effective.values
    broker = {
        BROKER_NAMES.get(setting.path, setting.key): values[setting.path]
        for setting in SETTINGS
        if setting.table in BROKER_TABLES
    }
    is_given = effective.origins["topics.defaults.durability"] != DEFAULT
    if broker["log_backend"] == KAFKA and not is_given:
        del broker["durability"]  # Kafka has a default of its own
    broker["quotas"] = effective.quotas
    broker["history_options"] = effective.history_options
    check_storage(make_settings(broker))
    _check_reachable(values)
    node = _node_settings(values)
    runs_jobs = node is None or node.runs_jobs
    return ServerSettings(
        data=Path(values["server.data"]),
        log_level=values["log_output.level"],
        log_format=values["log_output.format"],
        mqtt=values["mqtt.listen"],
        mqtts=values["mqtt.tls_listen"],
        tls=_tls_files(values, "mqtt", "mqtt"),
        mqtt_limits=MqttLimits(
            connect_s_max=seconds("connect_timeout", values["mqtt.connect_timeout"]),
            connections_max=values["mqtt.connections_max"],
            keep_alive_s_max=values["mqtt.keep_alive_s_max"],
            will_grace_s=values["mqtt.will_grace_s"],
            sys_interval_s=values["mqtt.sys_interval_s"],
            queue_qos0=values["mqtt.queue_qos0"],
            auto_create_topics=values["mqtt.auto_create_topics"],
            session_expiry_s_max=_session_expiry_s(values["mqtt.session_expiry_max"]),
            proxy_protocol=values["mqtt.proxy_protocol"],
        ),
        http=values["http.listen"],
        https=values["http.tls_listen"],
        http_tls=_http_tls_files(values),
        http_limits=_http_limits(values),
        bus=values["bus.path"],
        bus_processes_max=values["bus.processes_max"],
        broker=broker,
        bindings=effective.bindings,
        allow_anonymous=values["access.allow_anonymous"],
        schedule=effective.schedule if runs_jobs else (),
        jobs_max=values["spark.jobs_max"],
        spark_master=chosen_master(values),
        tokens=_token_settings(values),
        proxies=TrustedProxies(parse_networks("trusted_proxies", values["server.trusted_proxies"])),
        certificates=CertificateRules(
            values["access.certificate_user"],
            values["access.certificate_tenant"],
            values["access.certificate_unknown_users"],
        ),
        first_user=_first_user(values),
        roles=effective.roles,
        rules=effective.rules,
        bridges=effective.bridges if runs_jobs else (),
        node=node,
    )


def _node_settings(values: dict[str, Any]) -> NodeSettings | None:
    """Servers with the same Kafka and the same PostgreSQL are nodes."""
    if values["log.backend"] != KAFKA or not values["catalog.url"]:
        return None
    return NodeSettings(
        values["node.name"],
        values["node.lease_s"],
        values["node.advertise"],
        listen=values["node.listen"],
        shares_ports=values["node.shares_ports"],
        http_listen=values["node.http_listen"],
        http_advertise=values["node.http_advertise"],
        http_ca_file=values["node.http_ca_file"],
        runs_jobs=values["node.runs_jobs"],
        stop_delay_s=values["node.stop_delay_s"],
    )


def _first_user(values: dict[str, Any]) -> FirstUser | None:
    name, password_file = values["access.first_user"], values["access.first_password_file"]
    if bool(name) != bool(password_file):
        given, missing = ("first_user", "first_password_file")[:: 1 if name else -1]
        raise InvalidSetting(f"[access] {given} needs {missing}: set both, or neither")
    return FirstUser(name, Path(password_file)) if name else None


def _token_settings(values: dict[str, Any]) -> TokenSettings | None:
    keys, issuer, audience = (
        values[f"access.{name}"] for name in ("jwt_keys", "jwt_issuer", "jwt_audience")
    )
    if not keys:
        return None
    if not issuer or not audience:
        raise InvalidSetting(
            f"[access] jwt_keys {keys!r} needs jwt_issuer and jwt_audience: without them, tokens "
            "that the same keys signed for other services would be accepted here"
        )
    return TokenSettings(
        keys=Path(keys),
        issuer=issuer,
        audience=audience,
        leeway_s=values["access.jwt_leeway_s"],
        user_claim=values["access.jwt_user_claim"],
        tenant_claim=values["access.jwt_tenant_claim"],
        roles_claim=values["access.jwt_roles_claim"],
        client_claim=values["access.jwt_client_claim"],
        default_roles=tuple(sorted(set(values["access.jwt_default_roles"].split()))),
    )


def _session_expiry_s(value: Any) -> int:
    """Whole seconds, and at least one: 0 would mean that no session is kept."""
    if is_unlimited(value):
        return NEVER_EXPIRES
    return max(1, min(round(seconds("session_expiry_max", value)), NEVER_EXPIRES))


def _check_reachable(values: dict[str, Any]) -> None:
    doors = ("mqtt.listen", "mqtt.tls_listen", "http.listen", "http.tls_listen", "bus.path")
    if all(values[path] == OFF for path in doors):
        raise InvalidSetting(
            f"no client could connect: {', '.join(doors)} are all 'off'; turn one of them on"
        )


def _http_limits(values: dict[str, Any]) -> HttpLimits:
    return HttpLimits(
        connections_max=values["http.connections_max"],
        proxy_protocol=values["http.proxy_protocol"],
        body_bytes_max=size_bytes("body_bytes_max", values["http.body_bytes_max"]),
        head_s_max=seconds("head_timeout", values["http.head_timeout"]),
        body_s_max=seconds("body_timeout", values["http.body_timeout"]),
        idle_s_max=seconds("idle_timeout", values["http.idle_timeout"]),
        send_s_max=seconds("send_timeout", values["http.send_timeout"]),
        origins=tuple(values["http.origins"].split()),
        metrics=values["access.metrics"],
    )


def _http_tls_files(values: dict[str, Any]) -> TlsFiles | None:
    table = "http" if values["http.tls_cert"] else "mqtt"
    return _tls_files(values, "http", table)


def _tls_files(values: dict[str, Any], door: str, cert_of: str) -> TlsFiles | None:
    """What a door needs for TLS; `cert_of` is the table with the server's certificate."""
    listen = values[f"{door}.tls_listen"]
    if listen == OFF:
        return None
    cert, key = values[f"{cert_of}.tls_cert"], values[f"{cert_of}.tls_key"]
    if not cert:
        raise InvalidSetting(
            f"[{door}] tls_listen {listen!r} needs a certificate: "
            "set tls_cert and tls_key (--tls-cert, --tls-key)"
        )
    client_ca, crl = values[f"{door}.tls_client_ca"], values[f"{door}.tls_crl"]
    demands_client = values[f"{door}.tls_client_certificates"] == REQUIRED
    if crl and not client_ca:
        raise InvalidSetting(
            f"[{door}] tls_crl {crl!r} needs the CA of client certificates: set tls_client_ca"
        )
    if demands_client and not client_ca:
        raise InvalidSetting(
            f"[{door}] tls_client_certificates 'required' needs the CA that signs them: "
            "set tls_client_ca (--tls-client-ca)"
        )
    return TlsFiles(
        Path(cert),
        Path(key) if key else None,
        Path(client_ca) if client_ca else None,
        demands_client,
        Path(crl) if crl else None,
    )
