"""Putting the sources together: flags, the environment, the file, and defaults below them."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.settings import make_settings
from penstock.config.bridges import read_bridges
from penstock.config.checks import Setting
from penstock.config.declared_access import read_roles, read_rules
from penstock.config.defaults import PREFIX, environment
from penstock.config.known import (
    BY_PATH,
    LOCAL,
    OTHER_VARIABLES,
    SERVICE_VARIABLE,
    SETTINGS,
)
from penstock.core.naming.names import check_filter, check_topic
from penstock.core.quota_settings import read_quotas
from penstock.model.errors import InvalidSetting, RefusedError

if TYPE_CHECKING:
    from penstock.broker.access import DeclaredRole, DeclaredRule
    from penstock.doors.bridge.settings import BridgeSettings
    from penstock.pipeline.schedule import Scheduled


DEFAULT: Final = "default"  # where a value comes from that nobody gave
_LISTS: Final = ("bindings", "bridges", "roles", "rules")  # of each, the file may have several


@dataclass(frozen=True, slots=True)
class Binding:
    """Names that match `filter` are placed in `topic`, which is created if it is missing."""

    filter: str
    topic: str


@dataclass(frozen=True, slots=True)
class Effective:
    """All values that hold, and where each comes from."""

    values: dict[str, Any]  # by path
    origins: dict[str, str]
    bindings: tuple[Binding, ...]
    schedule: tuple[Scheduled, ...] = ()
    quotas: dict[str, Any] = field(default_factory=dict)  # the table as it was written
    roles: tuple[DeclaredRole, ...] = ()
    rules: tuple[DeclaredRule, ...] = ()
    history_options: dict[str, str] = field(default_factory=dict)
    bridges: tuple[BridgeSettings, ...] = ()


def spark_master(variables: Mapping[str, str] | None = None) -> str:
    """Where jobs run, for commands that are not told."""
    given = environment() if variables is None else variables
    known = [BY_PATH[path].variable for path in ("spark.master", "spark.remote")]
    effective = load(None, {}, {name: given[name] for name in known if name in given})
    return chosen_master(effective.values)


def chosen_master(values: Mapping[str, Any]) -> str:
    """`master`, or `remote` where that is set; InvalidSetting when both are."""
    master, remote = str(values["spark.master"]), str(values["spark.remote"])
    if remote and master != LOCAL:
        raise InvalidSetting(
            f"[spark] master {master!r} and remote {remote!r} are both set: give only one of them"
        )
    return remote or master


def spark_variables(master: str) -> dict[str, str]:
    """The opposite of `spark_master`: for programs that a broker starts."""
    remote = master if master.startswith("sc://") else ""
    return {
        BY_PATH["spark.master"].variable: LOCAL if remote else master,
        BY_PATH["spark.remote"].variable: remote,
    }


def load(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Effective:
    """Put the sources together; `flags` are by path, and hold only what was given."""
    values = {setting.path: setting.default for setting in SETTINGS}
    origins = dict.fromkeys(values, DEFAULT)
    bindings: tuple[Binding, ...] = ()
    schedule: tuple[Scheduled, ...] = ()
    quotas: dict[str, Any] = {}
    roles: tuple[DeclaredRole, ...] = ()
    rules: tuple[DeclaredRule, ...] = ()
    history_options: dict[str, str] = {}
    bridges: tuple[BridgeSettings, ...] = ()
    given: list[tuple[str, Any, str]] = []
    if file is not None:
        document = _read(file)
        bindings = _read_bindings(document.pop("bindings", []), str(file))
        bridges = read_bridges(document.pop("bridges", []), str(file))
        quotas = _read_quotas(document.pop("quotas", {}), str(file))
        roles = read_roles(document.pop("roles", []), str(file))
        rules = read_rules(document.pop("rules", []), roles, str(file))
        if isinstance(document.get("history"), dict):
            history_options = _read_options(document["history"].pop("options", {}), str(file))
        if isinstance(document.get("spark"), dict) and "schedule" in document["spark"]:
            from penstock.pipeline.schedule import read_schedule

            schedule = read_schedule(document["spark"].pop("schedule"), str(file))
        given += [(path, value, str(file)) for path, value in _flatten(document, str(file))]
    for variable, text in (environment() if variables is None else variables).items():
        if not variable.startswith(PREFIX):
            continue
        if "__" in variable:
            path = variable.removeprefix(PREFIX).replace("__", ".").lower()
            given.append((path, _from_text(path, text), variable))
        elif variable not in OTHER_VARIABLES and not SERVICE_VARIABLE.fullmatch(variable):
            raise _unknown_variable(variable)
    given += [(path, value, "flag") for path, value in (flags or {}).items()]
    for path, value, origin in given:
        setting = BY_PATH.get(path) or _unknown(path, origin)
        try:
            values[path] = setting.check(setting.key, value)
        except InvalidSetting as wrong:
            raise InvalidSetting(f"{origin}: [{setting.table}] {wrong}") from None
        origins[path] = origin
    return Effective(
        values=values,
        origins=origins,
        bindings=bindings,
        schedule=schedule,
        quotas=quotas,
        roles=roles,
        rules=rules,
        history_options=history_options,
        bridges=bridges,
    )


def _from_text(path: str, text: str) -> Any:
    """The environment has only text: read it as what the setting is."""
    default = BY_PATH[path].default if path in BY_PATH else ""
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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidSetting(f"{file} is not TOML: {wrong}") from wrong


def _flatten(table: dict[str, Any], origin: str, above: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        path = f"{above}{key}"
        is_table = any(known.startswith(f"{path}.") for known in BY_PATH)
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
    tables = sorted({setting.table for setting in SETTINGS} | set(_LISTS) | {"quotas"})
    known = [*BY_PATH, *tables]
    near = difflib.get_close_matches(path, known, 3)
    near.sort(key=lambda one: (-_likeness(one, path), known.index(one)))  # of equals the first
    if not near:  # the right key in the wrong table, perhaps
        key = path.rpartition(".")[2]
        near = [one for one in BY_PATH if one.endswith(f".{key}")][:1]
    hint = f"did you mean {near[0]!r}?" if near else f"tables are {', '.join(tables)}"
    raise InvalidSetting(f"{origin}: setting {path!r} is unknown: {hint}")


def _likeness(known: str, path: str) -> float:
    return difflib.SequenceMatcher(None, known, path).ratio()


def _unknown_variable(variable: str) -> InvalidSetting:
    """One without a double underscore."""
    known = [*(setting.variable for setting in SETTINGS), *OTHER_VARIABLES]
    name = variable.removeprefix(PREFIX)
    near = difflib.get_close_matches(name, [one.removeprefix(PREFIX) for one in known], 1)
    hint = "a setting's variable is PENSTOCK_TABLE__KEY, with two underscores"
    if name.lower() in _LISTS:
        hint = (
            f"{name.lower()} are only read from the settings file: write [[{name.lower()}]] there"
        )
    elif near:
        hint = f"did you mean {PREFIX}{near[0]}?"
    return InvalidSetting(f"{variable}: this variable is unknown: {hint}")


def _read_quotas(table: Any, origin: str) -> dict[str, Any]:
    try:
        read_quotas("quotas", table)
    except InvalidSetting as wrong:
        raise InvalidSetting(f"{origin}: [quotas] {wrong}") from None
    return dict(table)


def _read_options(table: Any, origin: str) -> dict[str, str]:
    try:
        return make_settings({"history_options": table}).history_options
    except InvalidSetting as wrong:
        raise InvalidSetting(f"{origin}: [history.options] {wrong}") from None


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
