"""Where `pub` and `sub` connect: --url, --host and --port, else the context, else localhost.

A context may have an MQTT address. If it has none, its broker is asked for the port: a directory by
its lock file, a URL by /v1/me.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.cli.output import UsageError, naming
from penstock.cli.target import find_context
from penstock.config.contexts import Context
from penstock.config.defaults import chosen_target
from penstock.core.masking import without_login
from penstock.model.errors import RefusedError

LOCAL: Final = "localhost"
_EVERYWHERE: Final = ("0.0.0.0", "::")  # where a broker may listen, but nobody can connect


class Address(NamedTuple):
    """What a URL of MQTT says; a part that it lacks is None."""

    host: str
    port: int | None
    is_tls: bool
    user: str | None
    password: str | None
    topic: str = ""


def read_mqtt_url(option: str, url: str, *, needs_topic: bool = False) -> Address:
    """UsageError if it is no such URL."""
    # A filter may end with #, which is no fragment here, and any name may contain a ?.
    parts = urlsplit(url.replace("#", "%23").replace("?", "%3F"))
    topic = unquote(parts.path.removeprefix("/"))
    try:
        port = parts.port
    except ValueError:
        port = 0
    is_whole = parts.scheme in ("mqtt", "mqtts") and parts.hostname and port != 0
    if not is_whole or bool(topic) is not needs_topic:
        rule = "mqtt[s]://[user[:password]@]host[:port]" + "/TOPIC" * needs_topic
        raise UsageError(f"{option} {without_login(url)!r} is invalid: write {rule}")
    host, is_tls = parts.hostname or "", parts.scheme == "mqtts"
    return Address(host, port, is_tls, *_login(parts))._replace(topic=topic)


def _login(parts: SplitResult) -> tuple[str | None, str | None]:
    """User and password of a URL."""
    user, password = parts.username, parts.password
    return (
        None if user is None else unquote(user),
        None if password is None else unquote(password),
    )


def take_place(options: argparse.Namespace) -> None:
    """Put what --url or a context says into the options that mean the same."""
    is_told = options.url is not None or options.host is not None or options.port is not None
    if is_told and options.context is not None:
        raise UsageError("--context says where the broker is: give it, or -h, -p or -L, not both")
    if options.url is not None:
        address = read_mqtt_url("--url", options.url, needs_topic=True)
        _take(options, address)
        topic = address.topic
        options.topic = [*options.topic, topic] if isinstance(options.topic, list) else topic
    elif not is_told and (options.context is not None or chosen_target() is None):
        context = find_context(options)
        if context is not None:
            _take_context(options, context)
    if options.host is None:
        options.host = LOCAL


def _take(options: argparse.Namespace, address: Address) -> None:
    options.host, options.port = address.host, address.port
    options.tls = options.tls or address.is_tls
    if address.user is not None:
        options.username = address.user
    if address.password is not None:
        options.pw = address.password


def _take_context(options: argparse.Namespace, context: Context) -> None:
    """A login of the command line is used rather than that of the context."""
    given = (options.username, options.pw)
    _take(options, read_mqtt_url("--mqtt", context.mqtt) if context.mqtt else _asked(context))
    if options.tls and context.cafile and not options.cafile:
        options.cafile = context.cafile
    if given != (None, None):
        options.username, options.pw = given
    elif options.username is None and context.key_file and options.password_file is None:
        options.username, options.pw = "key", _key_of(context)


def _key_of(context: Context) -> str:
    if not context.key_file:
        return ""
    with naming(f"the key file {context.key_file!r} of the context cannot be read"):
        return Path(context.key_file).read_text().strip()


def _asked(context: Context) -> Address:
    """Where the broker of a context speaks MQTT, as the broker says."""
    if "://" not in context.at:
        return _of_directory(context.at)
    from penstock.cli.remote import ask_at

    me = ask_at(context.at, _key_of(context), "GET", "/v1/me")
    parts = urlsplit(context.at)
    # A login that HTTP encrypts is not sent in the clear over MQTT.
    schemes = ("mqtts",) if parts.scheme == "https" else ("mqtt", "mqtts")
    for scheme in schemes:
        port = me.get(f"{scheme}_port")
        if port is not None:
            return Address(parts.hostname or "", port, scheme == "mqtts", *_login(parts))
    raise RefusedError(
        f"the broker at {without_login(context.at)} does not listen for {' or '.join(schemes)}: "
        "add the MQTT address to the context with `penstock context add … --mqtt URL`, or give -h"
    )


def _of_directory(path: str) -> Address:
    from penstock.log.files.directory import read_holder

    holder = read_holder(Path(path)) or {}
    for address in holder.get("addresses") or ():
        if address.startswith(("mqtt://", "mqtts://")):
            found = read_mqtt_url("address", address)
            return found._replace(host=LOCAL) if found.host in _EVERYWHERE else found
    raise RefusedError(
        f"no broker that speaks MQTT has the directory {path!r} of the context open: start "
        "`penstock serve` there, or say where the broker is with -h"
    )
