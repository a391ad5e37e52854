"""`penstock config init`, and the effective settings that `penstock serve --check` prints."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.settings import mask_password
from penstock.cli.output import show_json
from penstock.config import SETTINGS, Effective, Setting
from penstock.config.bridges import shown_bridge
from penstock.model.errors import RefusedError
from penstock.model.record import DEFAULT_TENANT

if TYPE_CHECKING:
    from penstock.broker.access import DeclaredRole, DeclaredRule
    from penstock.pipeline.schedule import Scheduled

DEFAULT_FILE: Final = "penstock.toml"

_HEAD: Final = """\
# Settings of a Penstock server: penstock serve --config FILE
# Every line below shows a default. Remove the '# ' in front of what you change.
# Flags override PENSTOCK_TABLE__KEY in the environment, which overrides this file.
"""
_BINDINGS: Final = """\
# Which topic stores which names; the first matching filter decides. A missing topic is created.
# [[bindings]]
# filter = "plant/+/temperature"
# topic = "temperatures"

# Who may do what, besides what `penstock role` and `penstock rule` add: see docs/SECURITY.md.
# [[roles]]
# name = "sensor"
# rules = ["allow publish sensors/%u/#", "allow subscribe,receive commands/%u/#"]

# A rule for everybody, or with `user` or `role` for one of them.
# [[rules]]
# rule = "deny receive,read hr/#"
# user = "alice"

# Other MQTT brokers to exchange messages with: see docs/MQTT.md.
# [[bridges]]
# name = "plant"
# address = "mqtts://plant.example:8883"
# user = "penstock"
# password_file = "/etc/penstock/plant.password"
#
# [[bridges.topics]]
# filter = "sensors/#"
# direction = "out"

# What each tenant may hold, [quotas.user] each user, [quotas.tenant.NAME] one tenant.
# [quotas]
# stored_bytes = "100 GiB"
# publish_rate = 5000

# Jobs that the broker starts at intervals; `run` is what follows `penstock pipeline run`.
# [spark.schedule]
# clean = { every = "1d", run = "clean ./archive --older-than 30d" }
"""


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("config")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    init = actions.add_parser("init", help="write a settings file with every setting as a comment")
    init.add_argument(
        "file", nargs="?", default=DEFAULT_FILE, help=f"file to write (default: {DEFAULT_FILE})"
    )
    init.add_argument("--json", action="store_true", help="print JSON")
    init.set_defaults(run=init_file)


def init_file(options: argparse.Namespace) -> None:
    path = Path(options.file)
    try:
        with path.open("x") as file:
            file.write(template())
    except FileExistsError:
        raise RefusedError(
            f"{path} already exists and was not changed: give another name, or move the file"
        ) from None
    except OSError as failed:
        raise RefusedError(f"{path} cannot be written: {failed.strerror}") from failed
    if options.json:
        show_json({"written": str(path)})
    else:
        print(f"wrote {path}; use it with: penstock serve --config {path}")


def template() -> str:
    """A file that changes nothing, with every setting in it."""
    lines = [_HEAD]
    for table, settings in _tables():
        lines.append(f"[{table}]")
        for setting in settings:
            lines.append(f"# {setting.says}")
            lines.append(f"# {setting.key} = {toml_value(setting.default)}")
        lines.append("")
    return "\n".join(lines) + "\n" + _BINDINGS


def show_effective(effective: Effective, *, as_json: bool) -> None:
    """Every value that holds, with its origin; as TOML it can be used as a file."""
    if as_json:
        bindings = [{"filter": one.filter, "topic": one.topic} for one in effective.bindings]
        show_json(
            {
                "settings": {path: _shown(value) for path, value in effective.values.items()},
                "origins": effective.origins,
                "bindings": bindings,
                "bridges": [shown_bridge(one) for one in effective.bridges],
                "quotas": effective.quotas,
                "roles": [_shown_role(one) for one in effective.roles],
                "rules": [_shown_rule(one) for one in effective.rules],
                "schedule": {one.name: shown_entry(one) for one in effective.schedule},
            }
        )
        return
    for table, settings in _tables():
        print(f"[{table}]")
        for setting in settings:
            line = f"{setting.key} = {toml_value(_shown(effective.values[setting.path]))}"
            print(f"{line:<42} # {effective.origins[setting.path]}")
        print()
    for binding in effective.bindings:
        print("[[bindings]]")
        print(f"filter = {toml_value(binding.filter)}")
        print(f"topic = {toml_value(binding.topic)}\n")
    for name, row in (
        *(("roles", _shown_role(role)) for role in effective.roles),
        *(("rules", _shown_rule(rule)) for rule in effective.rules),
    ):
        print(f"[[{name}]]")
        for key, value in row.items():
            print(f"{key} = {toml_value(value)}")
        print()
    for bridge in effective.bridges:
        _print_bridge(shown_bridge(bridge))
    for name, limits in quota_tables(effective.quotas):
        print(f"[{name}]")
        for key, value in limits.items():
            print(f"{key} = {toml_value(value)}")
        print()
    if effective.schedule:
        print("[spark.schedule]")
    for one in effective.schedule:
        pairs = [f"{key} = {toml_value(value)}" for key, value in shown_entry(one).items()]
        print(f"{toml_value(one.name)} = {{ {', '.join(pairs)} }}")


def _print_bridge(keys: dict[str, Any]) -> None:
    topics = keys.pop("topics")
    for name, row in (("bridges", keys), *(("bridges.topics", topic) for topic in topics)):
        print(f"[[{name}]]")
        for key, value in row.items():
            print(f"{key} = {toml_value(value)}")
        print()


def quota_tables(table: dict[str, Any], name: str = "quotas") -> Iterator[tuple[str, Any]]:
    """A table and the tables in it, each by its name in the file."""
    own = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if own:
        yield name, own
    for key, value in table.items():
        if isinstance(value, dict):
            yield from quota_tables(value, f"{name}.{key}")


def shown_entry(one: Scheduled) -> dict[str, str]:
    """An entry of the schedule as it may be written."""
    return {
        "every": f"{one.every_s:g}s",
        "run": shlex.join([one.job, *one.arguments]),
        "at_most": f"{one.at_most_s:g}s",
    }


def _shown_role(one: DeclaredRole) -> dict[str, Any]:
    shown = {"name": one.name, "rules": [str(rule) for rule in one.rules]}
    return shown | _shown_tenant(one.tenant)


def _shown_rule(one: DeclaredRule) -> dict[str, Any]:
    shown = {"rule": str(one.rule), "role": one.role, "user": one.user}
    return {key: value for key, value in shown.items() if value} | _shown_tenant(one.tenant)


def _shown_tenant(tenant: str) -> dict[str, str]:
    return {} if tenant == DEFAULT_TENANT else {"tenant": tenant}


def _shown(value: Any) -> Any:
    """A password in an address is for nobody's eyes."""
    return mask_password(value) if isinstance(value, str) else value


def toml_value(value: Any) -> str:
    """A text, number, boolean or list as TOML writes it; its escapes are those of JSON."""
    return json.dumps(value, ensure_ascii=False)


def _tables() -> Iterator[tuple[str, list[Setting]]]:
    tables: dict[str, list[Setting]] = {}
    for setting in SETTINGS:
        tables.setdefault(setting.table, []).append(setting)
    yield from tables.items()
