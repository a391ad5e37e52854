"""The settings of a server: one TOML file, the flags, and defaults below them.

A flag wins over `PENSTOCK_SECTION__KEY`, that over the file, that over the default. SETTINGS is
the whole list of keys. An unknown key is an error that names the nearest known one; a wrong value
is an error that says where it stands, what it is and what it should be.

The table is imported when it is first asked for: most commands need only where to look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.config.defaults import (
    DEFAULT_DATA,
    PREFIX,
    chosen_target,
    default_key,
    environment,
    storage_chosen,
    storage_settings,
    storage_variables,
)

if TYPE_CHECKING:
    from penstock.config.checks import OFF, OPTIONAL, REQUIRED, Setting, parse_address
    from penstock.config.known import SETTINGS
    from penstock.config.reading import (
        Binding,
        Effective,
        load,
        spark_master,
        spark_variables,
    )
    from penstock.config.server import FirstUser, ServerSettings, server_settings

__all__ = [
    "DEFAULT_DATA",
    "OFF",
    "OPTIONAL",
    "PREFIX",
    "REQUIRED",
    "SETTINGS",
    "Binding",
    "Effective",
    "FirstUser",
    "ServerSettings",
    "Setting",
    "chosen_target",
    "default_key",
    "environment",
    "load",
    "parse_address",
    "server_settings",
    "spark_master",
    "spark_variables",
    "storage_chosen",
    "storage_settings",
    "storage_variables",
]

_LATE = {
    "Binding": "penstock.config.reading",
    "Effective": "penstock.config.reading",
    "FirstUser": "penstock.config.server",
    "OFF": "penstock.config.checks",
    "OPTIONAL": "penstock.config.checks",
    "REQUIRED": "penstock.config.checks",
    "SETTINGS": "penstock.config.known",
    "ServerSettings": "penstock.config.server",
    "Setting": "penstock.config.checks",
    "load": "penstock.config.reading",
    "parse_address": "penstock.config.checks",
    "server_settings": "penstock.config.server",
    "spark_master": "penstock.config.reading",
    "spark_variables": "penstock.config.reading",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATE[name]), name)
    return value
