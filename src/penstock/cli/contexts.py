"""`penstock context add|use|list|remove`: names for brokers; and which one a command means."""

from __future__ import annotations

import argparse
import os
from typing import Any

from penstock.cli.mqtt.place import read_mqtt_url
from penstock.cli.output import UsageError, show_json, show_table
from penstock.cli.target import check_url
from penstock.config.contexts import (
    Context,
    Contexts,
    check_context_name,
    load_contexts,
    save_contexts,
)
from penstock.core.masking import without_login
from penstock.model.errors import RefusedError


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "context",
        description="Give names to brokers and data directories. A command uses --at or --context "
        "NAME, else $PENSTOCK_AT, else $PENSTOCK_CONTEXT, else the context chosen with `penstock "
        "context use`, else ./penstock_data. pub and sub use a context unless -h, -p or -L says "
        "where the broker is.",
        epilog="example: penstock context add prod https://broker.example:8090 --key-file "
        "~/prod.key",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    add = actions.add_parser(
        "add",
        help="add or replace a context",
        description="Add or replace a context. Keep keys in a file (--key-file): the context has "
        "only its path. A password in the URL is stored in a file that only you can read.",
    )
    add.add_argument("name", help="name of the context")
    add.add_argument("place", metavar="DIR|URL", help="data directory, or URL of a broker")
    add.add_argument("--key-file", metavar="FILE", default="", help="file with a key to log in")
    add.add_argument("--tenant", metavar="NAME", default="", help="tenant to work on")
    add.add_argument(
        "--mqtt",
        metavar="URL",
        default="",
        help="where pub and sub connect: mqtt[s]://[USER[:PASSWORD]@]HOST[:PORT] (default: the "
        "broker is asked for its MQTT port)",
    )
    add.add_argument(
        "--cafile", metavar="FILE", default="", help="CA that pub and sub trust, with TLS"
    )
    add.add_argument("--use", action="store_true", help="also use it from now on")
    add.set_defaults(run=add_context)
    use = actions.add_parser("use", help="use a context if a command names nothing else")
    use.add_argument("name", nargs="?", help="name of the context")
    use.add_argument("--none", action="store_true", help="use no context")
    use.set_defaults(run=use_context)
    listing = actions.add_parser("list", help="list all contexts, without passwords")
    listing.set_defaults(run=list_contexts)
    remove = actions.add_parser("remove", help="remove a context")
    remove.add_argument("name", help="name of the context")
    remove.set_defaults(run=remove_context)
    for action in (add, use, listing, remove):
        action.add_argument("--json", action="store_true", help="print JSON")


def add_context(options: argparse.Namespace) -> None:
    name = check_context_name(options.name)
    if "://" in options.place:
        check_url("DIR|URL", options.place)
        place = options.place
    else:
        place = os.path.abspath(options.place)
    key_file = _existing("--key-file", options.key_file)
    cafile = _existing("--cafile", options.cafile)
    if options.mqtt:
        read_mqtt_url("--mqtt", options.mqtt)  # refuses what is no address
    contexts = load_contexts()
    what = "replaced" if name in contexts.contexts else "added"
    contexts.contexts[name] = Context(place, key_file, options.tenant, options.mqtt, cafile)
    if options.use:
        contexts.current = name
    save_contexts(contexts)
    _answer(options, contexts, name, f"{what} context {name}: {without_login(place)}")


def _existing(option: str, file: str) -> str:
    path = os.path.abspath(os.path.expanduser(file)) if file else ""
    if path and not os.path.isfile(path):
        raise RefusedError(f"{option} {path!r} does not exist: create it first")
    return path


def use_context(options: argparse.Namespace) -> None:
    if options.none is (options.name is not None):
        raise UsageError("give the name of a context, or --none")
    contexts = load_contexts()
    if options.none:
        contexts.current = ""
        save_contexts(contexts)
        _answer(options, contexts, "", "commands use no context")
        return
    found = contexts.get(options.name)
    contexts.current = options.name
    save_contexts(contexts)
    said = f"commands use context {options.name}: {without_login(found.at)}"
    _answer(options, contexts, options.name, said)


def list_contexts(options: argparse.Namespace) -> None:
    contexts = load_contexts()
    names = sorted(contexts.contexts)
    if options.json:
        show_json([_shown(contexts, name) for name in names])
    elif not names:
        print("no contexts yet: add one with `penstock context add NAME DIR|URL`")
    else:
        rows = [_row(contexts, name) for name in names]
        show_table(["context", "in use", "at", "tenant", "key file", "mqtt"], rows)


def remove_context(options: argparse.Namespace) -> None:
    contexts = load_contexts()
    contexts.get(options.name)
    del contexts.contexts[options.name]
    if contexts.current == options.name:
        contexts.current = ""
    save_contexts(contexts)
    if options.json:
        show_json({"removed": options.name})
    else:
        print(f"removed context {options.name}")


def _shown(contexts: Contexts, name: str) -> dict[str, Any]:
    one = contexts.contexts[name]
    return {
        "context": name,
        "is_current": name == contexts.current,
        "at": without_login(one.at),
        "tenant": one.tenant,
        "key_file": one.key_file,
        "mqtt": without_login(one.mqtt),
        "cafile": one.cafile,
    }


def _row(contexts: Contexts, name: str) -> list[str]:
    one = _shown(contexts, name)
    in_use = "yes" if one["is_current"] else "-"
    rest = [one[key] or "-" for key in ("tenant", "key_file", "mqtt")]
    return [name, in_use, one["at"], *rest]


def _answer(options: argparse.Namespace, contexts: Contexts, name: str, said: str) -> None:
    if options.json:
        show_json(_shown(contexts, name) if name else {"context": None})
    else:
        print(said)
