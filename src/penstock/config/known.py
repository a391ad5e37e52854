"""All settings there are: reading, the template of `config init` and `serve --check` go by it."""

from __future__ import annotations

import re
from typing import Final

from penstock.broker.access import (
    BY_USER,
    COMMON_NAME,
    FINGERPRINT,
    ORGANIZATION,
    ORGANIZATIONAL_UNIT,
)
from penstock.broker.settings import BrokerSettings, NodeSettings
from penstock.config.checks import (
    OFF,
    OPTIONAL,
    Setting,
    address,
    certificates,
    connect_server,
    directory,
    duration,
    duration_or_unlimited,
    file,
    networks,
    of_broker,
    one_of,
    optional_text,
    origins,
    size,
    text,
    whole_number,
    yes_or_no,
)
from penstock.config.defaults import DEFAULT_DATA, PREFIX
from penstock.core.access import CLIENT
from penstock.core.bus import PROCESSES_MAX
from penstock.doors.http.limits import METRICS_READERS, HttpLimits
from penstock.doors.mqtt.limits import MqttLimits

LOCAL: Final = "local[*]"
_BROKER: Final = BrokerSettings()
_LIMITS: Final = MqttLimits()
_NODE: Final = NodeSettings()
_HTTP: Final = HttpLimits()

KAFKA_KEYS: Final = {
    "bootstrap": "addresses of Kafka's brokers: 'HOST:PORT', several with commas",
    "prefix": "what the names of Penstock's topics in Kafka begin with",
    "partitions": "partitions of a new topic: what is published under one name stays in order",
    "replication": "copies that Kafka keeps of every record",
    "tls_ca": "file with the certificates that Kafka's are checked by, or 'system'; empty: no TLS",
    "sasl_mechanism": "login to Kafka: 'PLAIN', 'SCRAM-SHA-256' or 'SCRAM-SHA-512'",
    "sasl_user": "user of that login",
    "sasl_password_file": "file with the password of that user",
}
SETTINGS: Final = (
    Setting("server.data", DEFAULT_DATA, directory, "data directory"),
    Setting(
        "server.trusted_proxies",
        "",
        networks,
        "addresses and networks of proxies that tell the address of a client, separated by spaces",
    ),
    Setting(
        "log_output.level",
        "info",
        one_of("debug", "info", "warning", "error"),
        "lowest level in the server log: 'debug', 'info', 'warning' or 'error'",
    ),
    Setting(
        "log_output.format",
        "text",
        one_of("text", "json"),
        "format of the server log on standard error: 'text', or 'json' with one object per line",
    ),
    Setting("mqtt.listen", "127.0.0.1:1883", address, "address for MQTT clients, or 'off'"),
    Setting(
        "mqtt.tls_listen", OFF, address, "address for MQTT with TLS, or 'off'; usual port 8883"
    ),
    Setting("mqtt.tls_cert", "", file, "certificate chain of the server, PEM"),
    Setting("mqtt.tls_key", "", file, "private key, PEM; empty if it is in tls_cert"),
    Setting(
        "mqtt.tls_client_ca",
        "",
        file,
        "CA of client certificates; the common name of a certificate is the user",
    ),
    Setting(
        "mqtt.tls_client_certificates",
        OPTIONAL,
        certificates,
        "'optional' (clients without a certificate log in with a password) or 'required'",
    ),
    Setting(
        "mqtt.tls_crl",
        "",
        file,
        "certificate revocation list of that CA, PEM; its certificates are rejected",
    ),
    Setting(
        "mqtt.connect_timeout",
        f"{_LIMITS.connect_s_max:g}s",
        duration,
        "how long a client may take to connect and log in",
    ),
    Setting(
        "mqtt.connections_max",
        _LIMITS.connections_max,
        lambda key, value: whole_number(key, value, 1, 10_000_000),
        "maximum number of connections; more are rejected",
    ),
    Setting(
        "mqtt.keep_alive_s_max",
        _LIMITS.keep_alive_s_max,
        lambda key, value: whole_number(key, value, 0, 65_535),
        "longest keep alive of an MQTT 5 client, in seconds; 0: no limit",
    ),
    Setting(
        "mqtt.session_expiry_max",
        "90d",
        duration_or_unlimited,
        "how long a session is kept at most after its client disconnected; or 'unlimited'",
    ),
    Setting(
        "mqtt.sys_interval_s",
        _LIMITS.sys_interval_s,
        lambda key, value: whole_number(key, value, 0, 65_535),
        "seconds between updates of $SYS/broker/…; 0: no updates",
    ),
    Setting(
        "mqtt.queue_qos0",
        _LIMITS.queue_qos0,
        yes_or_no,
        "also keep QoS 0 messages for sessions whose clients are offline",
    ),
    Setting(
        "mqtt.auto_create_topics",
        _LIMITS.auto_create_topics,
        lambda key, value: whole_number(key, value, 0, 100_000),
        "how many topics publishing may create, one for each first level of a name",
    ),
    Setting(
        "mqtt.proxy_protocol",
        _LIMITS.proxy_protocol,
        yes_or_no,
        "trusted proxies begin every connection with a header of the PROXY protocol, version 2",
    ),
    Setting("http.listen", "127.0.0.1:8090", address, "address for HTTP clients, or 'off'"),
    Setting(
        "http.tls_listen", OFF, address, "address for HTTP with TLS, or 'off'; usual port 8443"
    ),
    Setting("http.tls_cert", "", file, "certificate chain, PEM; empty: that of [mqtt]"),
    Setting("http.tls_key", "", file, "private key, PEM; empty if it is in tls_cert"),
    Setting(
        "http.tls_client_ca",
        "",
        file,
        "CA of client certificates, which log in as those of MQTT do; empty: they are not used",
    ),
    Setting(
        "http.tls_client_certificates",
        OPTIONAL,
        certificates,
        "'optional' (clients without a certificate log in otherwise) or 'required'",
    ),
    Setting(
        "http.tls_crl",
        "",
        file,
        "certificate revocation list of that CA, PEM; its certificates are rejected",
    ),
    Setting(
        "http.origins",
        "",
        origins,
        "additional allowed origins of web pages, separated by spaces: 'https://a.example'; or '*'",
    ),
    Setting(
        "http.connections_max",
        _HTTP.connections_max,
        lambda key, value: whole_number(key, value, 1, 10_000_000),
        "maximum number of connections; more are rejected",
    ),
    Setting(
        "http.proxy_protocol",
        _HTTP.proxy_protocol,
        yes_or_no,
        "trusted proxies begin every connection with a header of the PROXY protocol, version 2",
    ),
    Setting("http.body_bytes_max", "32 MiB", size, "largest body of a request"),
    Setting(
        "http.head_timeout",
        f"{_HTTP.head_s_max:g}s",
        duration,
        "how long a client may take to send the headers",
    ),
    Setting(
        "http.body_timeout",
        f"{_HTTP.body_s_max:g}s",
        duration,
        "how long a client may take to send the body",
    ),
    Setting(
        "http.idle_timeout", f"{_HTTP.idle_s_max:g}s", duration, "how long a connection may be idle"
    ),
    Setting(
        "http.send_timeout",
        f"{_HTTP.send_s_max:g}s",
        duration,
        "how long a client may read nothing of a response",
    ),
    Setting("bus.path", OFF, text, "path of the socket of the local bus, or 'off'"),
    Setting(
        "bus.processes_max",
        PROCESSES_MAX,
        lambda key, value: whole_number(key, value, 1, 10_000),
        "processes that may subscribe on the bus",
    ),
    Setting(
        "mqtt.will_grace_s",
        _LIMITS.will_grace_s,
        lambda key, value: whole_number(key, value, 0, 86_400),
        "seconds after a start in which clients may reconnect before their wills are published",
    ),
    Setting(
        "topics.defaults.durability",
        _BROKER.durability,
        of_broker("durability"),
        "what an acknowledgement means: 'fsync', on disk, or 'os', handed to the system",
    ),
    Setting(
        "topics.defaults.retention_age",
        "7d",
        of_broker("retention_age"),
        "records older than this are removed; or 'unlimited'",
    ),
    Setting(
        "topics.defaults.retention_bytes",
        "unlimited",
        of_broker("retention_bytes"),
        "the oldest records of a larger topic are removed; '10 GiB', or 'unlimited'",
    ),
    Setting(
        "topics.defaults.history",
        _BROKER.history,
        of_broker("history"),
        "whether sealed records are copied into an open table before they are removed",
    ),
    Setting(
        "topics.defaults.history_age",
        "unlimited",
        of_broker("history_age"),
        "how long records stay in the history; or 'unlimited'",
    ),
    Setting(
        "log.backend",
        _BROKER.log_backend,
        of_broker("log_backend"),
        "where topics are stored: 'files', 'kafka', or 'postgres', the catalog's database",
    ),
    Setting("log.segment_bytes", "32 MiB", of_broker("segment_bytes"), "size of a closed file"),
    Setting("log.segment_age", "1d", of_broker("segment_age"), "a file is closed at this age"),
    Setting(
        "log.payload_bytes_max",
        "16 MiB",
        of_broker("payload_bytes_max"),
        "largest message, at most 16 MiB",
    ),
    Setting(
        "log.disk_free_percent_min",
        _BROKER.disk_free_percent_min,
        of_broker("disk_free_percent_min"),
        "publishes are rejected if less disk space is free",
    ),
    Setting(
        "log.upkeep_every",
        f"{_BROKER.upkeep_s:g}s",
        duration,
        "interval of retention, sealing and the check of free disk space",
    ),
    *(
        Setting(f"kafka.{key}", getattr(_BROKER, f"kafka_{key}"), of_broker(f"kafka_{key}"), says)
        for key, says in KAFKA_KEYS.items()
    ),
    Setting(
        "history.url",
        _BROKER.history_url,
        of_broker("history_url"),
        "where histories are stored: a directory, or 's3://BUCKET/PREFIX'; empty: nowhere",
    ),
    Setting(
        "catalog.url",
        _BROKER.catalog_url,
        of_broker("catalog_url"),
        "PostgreSQL instead of SQLite: 'postgresql://USER@HOST:PORT/DATABASE'",
    ),
    Setting(
        "catalog.schema",
        _BROKER.catalog_schema,
        of_broker("catalog_schema"),
        "schema of the tables in that database; only one broker at a time may use it",
    ),
    Setting(
        "catalog.position_saves_max",
        _BROKER.position_saves_max,
        of_broker("position_saves_max"),
        "number of moved positions that are saved together",
    ),
    Setting(
        "catalog.position_save_every",
        f"{_BROKER.position_save_s_max:g}s",
        duration,
        "longest time until a moved position is saved",
    ),
    Setting(
        "access.allow_anonymous",
        False,
        yes_or_no,
        "accept clients without a login, from every address",
    ),
    Setting(
        "access.first_user",
        "",
        optional_text,
        "add this administrator at the start if no user exists; needs first_password_file",
    ),
    Setting(
        "access.first_password_file",
        "",
        file,
        "file whose first line is the password of that user",
    ),
    Setting(
        "access.certificate_user",
        COMMON_NAME,
        one_of(COMMON_NAME, FINGERPRINT),
        "what names the user of a client certificate: 'common_name', or 'fingerprint' (SHA-256)",
    ),
    Setting(
        "access.certificate_tenant",
        BY_USER,
        one_of(BY_USER, ORGANIZATION, ORGANIZATIONAL_UNIT),
        "what names the tenant of a client certificate: 'user' (a name 'tenant/user'), "
        "'organization' or 'organizational_unit'",
    ),
    Setting(
        "access.certificate_unknown_users",
        False,
        yes_or_no,
        "accept certificates of the CA that name no user, although users exist",
    ),
    Setting(
        "access.metrics",
        _HTTP.metrics,
        one_of(*METRICS_READERS),
        "who may read /metrics: 'login' (whoever is let in), 'admin', or 'open' (everybody)",
    ),
    Setting(
        "access.jwt_keys",
        "",
        file,
        "JWKS file with the keys that check tokens (JWT); empty: tokens are not accepted",
    ),
    Setting("access.jwt_issuer", "", optional_text, "required claim 'iss' of tokens"),
    Setting("access.jwt_audience", "", optional_text, "required claim 'aud' of tokens"),
    Setting(
        "access.jwt_leeway_s",
        30,
        lambda key, value: whole_number(key, value, 0, 3_600),
        "seconds by which the clock of the issuer may differ",
    ),
    Setting("access.jwt_user_claim", "sub", text, "claim with the user name"),
    Setting("access.jwt_tenant_claim", "tenant", text, "claim with the tenant"),
    Setting(
        "access.jwt_roles_claim",
        "roles",
        text,
        "claim with the roles; a claim inside an object is written with dots",
    ),
    Setting(
        "access.jwt_default_roles",
        CLIENT,
        optional_text,
        "roles of a token without that claim, separated by spaces",
    ),
    Setting(
        "access.jwt_client_claim",
        "mqtt_client_id",
        text,
        "claim with the only MQTT client id that the token may be used with",
    ),
    Setting(
        "spark.master",
        LOCAL,
        text,
        "where jobs run: on this machine with all cores, or a cluster such as 'spark://HOST:7077'",
    ),
    Setting(
        "spark.remote",
        "",
        connect_server,
        "instead of master: a Spark Connect server, 'sc://HOST:15002'",
    ),
    Setting(
        "node.name",
        _NODE.name,
        optional_text,
        "name of this node among others on the same Kafka and PostgreSQL; empty: node-NUMBER",
    ),
    Setting(
        "node.lease_s",
        _NODE.lease_s,
        lambda key, value: whole_number(key, value, 1, 60),
        "seconds after which a node that does not answer counts as dead; the same on all nodes",
    ),
    Setting(
        "node.advertise",
        _NODE.advertise,
        optional_text,
        "HOST:PORT where MQTT clients reach this node; empty: its first listener",
    ),
    Setting(
        "node.listen",
        _NODE.listen,
        address,
        "MQTT of this node alone, where other nodes share its ports; 'off' for none",
    ),
    Setting(
        "node.http_listen",
        _NODE.http_listen,
        address,
        "HTTP of this node alone, where other nodes share its ports; 'off' for none",
    ),
    Setting(
        "node.http_advertise",
        _NODE.http_advertise,
        optional_text,
        "http:// or https:// URL where other nodes reach the HTTP of this node; empty: its first "
        "HTTP listener",
    ),
    Setting(
        "node.http_ca_file",
        _NODE.http_ca_file,
        optional_text,
        "authorities that sign the certificates of other nodes, if those advertise https://; "
        "empty: those of the system",
    ),
    Setting(
        "node.stop_delay_s",
        _NODE.stop_delay_s,
        lambda key, value: whole_number(key, value, 0, 60),
        "seconds for which a node that was told to stop still serves while /readyz answers 503, so "
        "that load balancers notice",
    ),
    Setting(
        "node.runs_jobs", True, yes_or_no, "run [[bridges]] and [spark.schedule]: only one node may"
    ),
    Setting(
        "node.shares_ports",
        _NODE.shares_ports,
        yes_or_no,
        "let other nodes on this machine listen on the same ports (SO_REUSEPORT)",
    ),
    Setting(
        "spark.jobs_max",
        2,
        lambda key, value: whole_number(key, value, 1, 100),
        "jobs of [spark.schedule] that run at the same time",
    ),
)
BY_PATH: Final = {setting.path: setting for setting in SETTINGS}
# Where BrokerSettings calls a key otherwise than the file does.
BROKER_NAMES: Final = {
    "log.upkeep_every": "upkeep_s",
    "log.backend": "log_backend",
    "history.url": "history_url",
    "catalog.position_save_every": "position_save_s_max",
    "catalog.url": "catalog_url",
    "catalog.schema": "catalog_schema",
    **{f"kafka.{key}": f"kafka_{key}" for key in KAFKA_KEYS},
}
# Variables that are no settings of a server.
OTHER_VARIABLES: Final = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("AT", "CONTEXT", "KEY"),  # of commands
        *("CHAOS_EVERY_S", "CHAOS_S", "COMPILE", "EXPECT_ENGINE"),  # of make and of tests
        *("POWERLOSS_POINTS", "ROUNDS", "SEED", "SIM_FIRST", "SIM_SEEDS"),
        *("TRACE_ACKS", "TRACE_ACK_FD", "TRACE_FILE", "TRACE_ROOT"),
    )
)
# Variables that Kubernetes and Docker set in every container next to a service `penstock`.
SERVICE_VARIABLE: Final = re.compile(
    PREFIX + r"(SERVICE_(HOST|PORT)(_.*)?|PORT(_[0-9]+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)"
)
BROKER_TABLES: Final = ("topics.defaults", "log", "kafka", "history", "catalog")
