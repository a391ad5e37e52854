"""The options that `pub` and `sub` share with mosquitto_pub and mosquitto_sub."""

from __future__ import annotations

import argparse
import secrets
import ssl
from pathlib import Path
from typing import Any, Final

from penstock.cli.mqtt.client import ANSWER_S_MAX, Target
from penstock.cli.output import UsageError, naming
from penstock.core.naming.names import check_name
from penstock.model.errors import RefusedError
from penstock.mqtt.kinds import MQTT_3_1, MQTT_3_1_1, MQTT_5, PacketType
from penstock.mqtt.packets import Connect, Will
from penstock.mqtt.properties import PROPERTIES, WILL, Properties, PropertyRow, Wire

VERSIONS: Final = {
    "31": MQTT_3_1,
    "mqttv31": MQTT_3_1,
    "311": MQTT_3_1_1,
    "mqttv311": MQTT_3_1_1,
    "5": MQTT_5,
    "mqttv5": MQTT_5,
}
NEVER_EXPIRES: Final = 0xFFFF_FFFF
PLACES: Final = {
    "connect": PacketType.CONNECT,
    "publish": PacketType.PUBLISH,
    "subscribe": PacketType.SUBSCRIBE,
    "will": WILL,
}
# What mosquitto calls otherwise than we do.
_ALIASES: Final = {
    "user-property": "user_properties",
    "subscription-identifier": "subscription_identifiers",
}


def make_parser(commands: Any, name: str, usage: str, examples: str) -> argparse.ArgumentParser:
    """A command whose -h is a host."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        usage=f"penstock {name} {usage}",
        epilog="examples:\n" + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("--help", action="help", help="show this help and exit")
    return parser


def add_connection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("connection")
    _add_server(group.add_argument)
    _add_session(group.add_argument)
    _add_output(group.add_argument)
    _add_tls(parser)
    _add_will(parser)


def _add_server(add: Any) -> None:
    add(
        "-L",
        "--url",
        metavar="URL",
        help="server, login and topic in one URL: mqtt[s]://[user[:password]@]host[:port]/TOPIC",
    )
    add("-h", "--host", help="host of the broker (that of the context, else localhost)")
    add("-p", "--port", type=number(1, 65_535), help="port of the broker (1883; 8883 with TLS)")
    add(
        "--context",
        metavar="NAME",
        help="use this context (default: $PENSTOCK_CONTEXT, else that of `penstock context use`)",
    )
    add("-u", "--username", metavar="USER", help="user name")
    add(
        "-P",
        "--pw",
        metavar="PASSWORD",
        help="password, visible to all users of this machine; better use --password-file",
    )
    add("--password-file", metavar="FILE", help="read the password from the first line of FILE")


def _add_session(add: Any) -> None:
    add("-i", "--id", metavar="ID", help="client id (random)")
    add("-I", "--id-prefix", metavar="PREFIX", help="use a random client id with this prefix")
    add(
        "-V",
        "--protocol-version",
        choices=sorted(VERSIONS),
        default="5",
        metavar="VERSION",
        help="MQTT version: 31, 311 or 5 (5)",
    )
    add(
        "-k",
        "--keepalive",
        type=number(0, 65_535),
        default=60,
        metavar="S",
        help="keep alive in seconds (60)",
    )
    add(
        "-c",
        "--disable-clean-session",
        action="store_true",
        help="resume the session and keep it afterwards; needs --id",
    )
    add(
        "-x",
        "--session-expiry-interval",
        type=_expiry_s,
        metavar="S",
        help="keep the session for S seconds after the connection ends, -1 forever (MQTT 5)",
    )
    add(
        "-D",
        "--property",
        nargs="+",
        action="append",
        default=[],
        metavar=("PACKET NAME VALUE", ""),
        help=f"set an MQTT 5 property of {', '.join(PLACES)}: -D publish content-type text/plain",
    )


def _add_output(add: Any) -> None:
    add("-d", "--debug", action="store_true", help="show packets on standard error")
    add("--json", action="store_true", help="print JSON")
    add("--no-reconnect", action="store_true", help="stop when the connection is lost")
    add("--quiet", action="store_true", help="do not report lost connections")


def _add_tls(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("TLS").add_argument
    add("--cafile", metavar="FILE", help="use TLS and trust certificates signed by this CA")
    add("--cert", metavar="FILE", help="client certificate")
    add("--key", metavar="FILE", help="key of the client certificate")
    add("--insecure", action="store_true", help="do not check the host name in the certificate")
    add("--tls", action="store_true", help="use TLS and trust the CAs of this machine")


def _add_will(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("will, published if the connection is lost").add_argument
    add("--will-topic", metavar="NAME", help="name of the will")
    add("--will-payload", metavar="TEXT", default="", help="payload of the will (empty)")
    add("--will-qos", type=number(0, 2), default=0, metavar="QOS", help="QoS of the will (0)")
    add("--will-retain", action="store_true", help="publish the will as a retained message")


def number(least: int, most: int) -> Any:
    """An argument that is a whole number within bounds."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least} to {most}"
            )
        return int(text)

    return parse


def _expiry_s(text: str) -> int:
    """Seconds; mosquitto's words for ever are -1 and ∞."""
    return NEVER_EXPIRES if text in ("-1", "∞") else int(number(0, NEVER_EXPIRES)(text))


def target(options: argparse.Namespace) -> Target:
    """Where to connect; UsageError when options contradict each other."""
    version = VERSIONS[options.protocol_version]
    has_tls = bool(options.tls or options.cafile)
    if (options.cert or options.key or options.insecure) and not has_tls:
        raise UsageError("--cert, --key and --insecure need TLS: also give --cafile or --tls")
    connect = Connect(
        client_id=_client_id(options),
        clean_start=not options.disable_clean_session,
        keep_alive_s=options.keepalive,
        will=_will(options),
        username=options.username,
        password=_password(options),
        version=version,
        properties=_connect_properties(options, version),
    )
    return Target(
        options.host,
        options.port or (8883 if has_tls else 1883),
        connect,
        tls=_tls(options) if has_tls else None,
        wait_s_max=ANSWER_S_MAX,
        is_debug=options.debug,
    )


def _client_id(options: argparse.Namespace) -> str:
    if options.id is not None and options.id_prefix is not None:
        raise UsageError("give either --id or --id-prefix, not both")
    if options.id is not None:
        return str(options.id)
    if options.disable_clean_session:
        raise UsageError("--disable-clean-session needs --id: the client id identifies the session")
    prefix = "penstock" if options.id_prefix is None else options.id_prefix
    return f"{prefix}-{secrets.token_hex(6)}"


def _password(options: argparse.Namespace) -> bytes | None:
    if options.pw is not None and options.password_file is not None:
        raise UsageError("give either --pw or --password-file, not both")
    if options.password_file is not None:
        password: bytes | None = read_password(options.password_file)
    else:
        password = None if options.pw is None else options.pw.encode()
    if password is not None and options.username is None:
        raise UsageError("a password needs a user name: also give --username")
    return password


def read_password(path: str) -> bytes:
    """The first line of a file, without its end."""
    with naming(f"--password-file {path!r} cannot be read"), Path(path).open("rb") as file:
        return file.readline().removesuffix(b"\n").removesuffix(b"\r")


def _will(options: argparse.Namespace) -> Will | None:
    if options.will_topic is None:
        if options.will_payload or options.will_qos or options.will_retain:
            raise UsageError("a will needs a name: also give --will-topic")
        return None
    return Will(
        check_name(options.will_topic),
        options.will_payload.encode(),
        options.will_qos,
        options.will_retain,
        read_properties(options, "will"),
    )


def _connect_properties(options: argparse.Namespace, version: int) -> Properties:
    given = read_properties(options, "connect")
    expiry_s = options.session_expiry_interval
    if version != MQTT_5:
        if expiry_s is not None or options.property:
            raise UsageError("session expiry and properties need MQTT 5: use -V 5")
        return given
    if expiry_s is None and options.disable_clean_session:
        expiry_s = NEVER_EXPIRES
    if expiry_s is None:
        return given
    return _with(given, "session_expiry_interval", expiry_s)


def _tls(options: argparse.Namespace) -> ssl.SSLContext:
    for option in ("cafile", "cert", "key"):
        path = getattr(options, option)
        if path is not None:  # ssl would not say which one it is
            with naming(f"--{option} {path!r} cannot be read"):
                Path(path).open("rb").close()
    try:
        context = ssl.create_default_context(cafile=options.cafile)
    except ssl.SSLError as failed:
        raise _unusable(f"--cafile {options.cafile!r}", failed) from failed
    try:
        if options.cert:
            context.load_cert_chain(options.cert, options.key)
    except ssl.SSLError as failed:
        if options.key is None:
            raise RefusedError(
                f"--cert {options.cert!r} contains no certificate with its key: give the key with "
                "--key"
            ) from failed
        raise _unusable(f"--cert {options.cert!r} with --key {options.key!r}", failed) from failed
    context.check_hostname = not options.insecure
    return context


def _unusable(what: str, failed: ssl.SSLError) -> RefusedError:
    return RefusedError(f"{what} cannot be used: {failed.reason or failed}; a PEM file is required")


# Properties


def read_properties(options: argparse.Namespace, place: str) -> Properties:
    """What `-D place name value` said."""
    found = Properties()
    for words in options.property:
        if words[0] not in PLACES:
            raise UsageError(f"-D {words[0]!r} is invalid: use one of {', '.join(PLACES)}")
        if words[0] == place:
            field, value = _property(place, words[1:])
            found = _with(found, field, value)
    return found


def _property(place: str, words: list[str]) -> tuple[str, Any]:
    rows = {row.field: row for row in PROPERTIES if PLACES[place] in row.legal_in}
    if place == "publish":
        del rows["subscription_identifiers"]  # only a server may send them (MQTT 5 §3.3.4)
    name = words[0] if words else ""
    row = rows.get(_ALIASES.get(name, name.replace("-", "_")))
    if row is None:
        known = ", ".join(sorted(_spelled(field) for field in rows))
        raise UsageError(f"-D {place} {name!r} is not a property of {place}: use one of {known}")
    wanted = 2 if row.wire is Wire.PAIR else 1
    if len(words) != 1 + wanted:
        raise UsageError(f"-D {place} {name} needs {wanted} value{'s' * (wanted > 1)}")
    return row.field, _value(row, words[1:])


def _spelled(field: str) -> str:
    spellings = {ours: theirs for theirs, ours in _ALIASES.items()}
    return spellings.get(field, field.replace("_", "-"))


def _value(row: PropertyRow, words: list[str]) -> Any:
    if row.wire is Wire.PAIR:
        return ((words[0], words[1]),)
    if row.wire in (Wire.TEXT, Wire.NAME):
        return words[0]
    if row.wire is Wire.BINARY:
        return words[0].encode()
    most = min(row.most, {Wire.BYTE: 255, Wire.U16: 65_535}.get(row.wire, row.most))
    try:
        value = number(row.least, most)(words[0])
    except argparse.ArgumentTypeError as wrong:
        raise UsageError(f"-D {_spelled(row.field)}: {wrong}") from None
    return (value,) if row.field == "subscription_identifiers" else value


def _with(properties: Properties, field: str, value: Any) -> Properties:
    """With one more value; those that may stand several times are collected."""
    values = {row.field: getattr(properties, row.field) for row in PROPERTIES}
    if isinstance(value, tuple):
        value = values[field] + value
    return Properties(**(values | {field: value}))
