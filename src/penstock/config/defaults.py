"""What commands go by when they are told nothing: the place, the key, the storage.

Apart from the table of all settings, which takes a while to import. Nothing else in Penstock reads
the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

DEFAULT_DATA: Final = "./penstock_data"
PREFIX: Final = "PENSTOCK_"  # of environment variables
# Where a data directory keeps things; setting: name in BrokerSettings
STORAGE: Final = {
    "catalog.url": "catalog_url",
    "catalog.schema": "catalog_schema",
    "log.backend": "log_backend",
    "kafka.bootstrap": "kafka_bootstrap",
    "kafka.prefix": "kafka_prefix",
    "kafka.partitions": "kafka_partitions",
    "kafka.replication": "kafka_replication",
    "kafka.tls_ca": "kafka_tls_ca",
    "kafka.sasl_mechanism": "kafka_sasl_mechanism",
    "kafka.sasl_user": "kafka_sasl_user",
    "kafka.sasl_password_file": "kafka_sasl_password_file",
}


def environment() -> dict[str, str]:
    return dict(os.environ)


def variable_of(path: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + path.replace(".", "__").upper()


def chosen_target() -> str | None:
    """The place of commands that are not told one, if the environment names it."""
    return os.environ.get("PENSTOCK_AT")


def default_key() -> str:
    """The key that commands log in with at a broker, if they are not told another one."""
    return os.environ.get("PENSTOCK_KEY", "")


def storage_chosen(variables: Mapping[str, str]) -> dict[str, str]:
    """What these variables say about where a data directory keeps things."""
    names = [variable_of(path) for path in STORAGE]
    return {name: variables[name] for name in names if name in variables}


def storage_settings(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Where a data directory keeps things, for commands that open it and know no settings file."""
    chosen = storage_chosen(os.environ if variables is None else variables)
    if not chosen:
        from penstock.broker.settings import BrokerSettings

        usual = BrokerSettings()
        return {name: getattr(usual, name) for name in STORAGE.values()}
    from penstock.config.reading import load

    values = load(None, {}, chosen).values
    return {name: values[path] for path, name in STORAGE.items()}


def storage_variables(broker: Mapping[str, Any]) -> dict[str, str]:
    """The opposite of `storage_settings`: for programs that a broker starts."""
    return {variable_of(path): str(broker[name]) for path, name in STORAGE.items()}
