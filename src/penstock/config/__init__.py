"""The settings of a server: one TOML file, the environment, flags, and defaults below them.

A flag wins over `PENSTOCK_SECTION__KEY`, that over the file, that over the default. SETTINGS is
the whole list of keys. An unknown key is an error that names the nearest known one; a wrong value
is an error that says where it stands, what it is and what it should be.
"""

from __future__ import annotations

from penstock.config.checks import OFF, OPTIONAL, PREFIX, REQUIRED, Setting, parse_address
from penstock.config.known import DEFAULT_DATA, SETTINGS
from penstock.config.reading import (
    Binding,
    Effective,
    default_key,
    default_target,
    environment,
    load,
    spark_master,
    spark_variables,
    storage_settings,
    storage_variables,
)
from penstock.config.server import ServerSettings, TlsFiles, server_settings

__all__ = [
    "DEFAULT_DATA",
    "OFF",
    "OPTIONAL",
    "PREFIX",
    "REQUIRED",
    "SETTINGS",
    "Binding",
    "Effective",
    "ServerSettings",
    "Setting",
    "TlsFiles",
    "default_key",
    "default_target",
    "environment",
    "load",
    "parse_address",
    "server_settings",
    "spark_master",
    "spark_variables",
    "storage_settings",
    "storage_variables",
]
