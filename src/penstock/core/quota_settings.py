"""`[quotas]` of the settings file, read and checked.

```toml
[quotas]                    # each tenant
topics = 500
stored_bytes = "20 GiB"
[quotas.user]               # each user of a tenant
connections = 100
publish_rate = 1000
[quotas.tenant.acme]        # one tenant, instead; [quotas.tenant.acme.user] is for its users
topics = "unlimited"
```
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from penstock.core.naming.names import shown
from penstock.core.quotas import (
    KINDS,
    PUBLISH_BYTES_RATE,
    RETAINED_BYTES,
    STORED_BYTES,
    TENANT_DEFAULTS,
    USER_DEFAULTS,
)
from penstock.core.topic_settings import check_keys, is_unlimited, size_bytes
from penstock.model.errors import InvalidSetting

COUNT_MAX: Final = 1 << 53
USER: Final = "user"
TENANT: Final = "tenant"
_SIZES: Final = (STORED_BYTES, RETAINED_BYTES, PUBLISH_BYTES_RATE)

Given = dict[str, int | None]  # None: unlimited


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """What was set, above the defaults."""

    tenants: Given = field(default_factory=dict)  # of every tenant
    users: Given = field(default_factory=dict)  # of every user
    by_tenant: dict[str, Given] = field(default_factory=dict)
    users_by_tenant: dict[str, Given] = field(default_factory=dict)

    def of_tenant(self, tenant: str) -> dict[str, int]:
        """The quotas of a tenant that are limited."""
        return _limited(TENANT_DEFAULTS | self.tenants | self.by_tenant.get(tenant, {}))

    def of_user(self, tenant: str) -> dict[str, int]:
        """The quotas of each user of a tenant that are limited."""
        return _limited(USER_DEFAULTS | self.users | self.users_by_tenant.get(tenant, {}))


def _limited(given: Given) -> dict[str, int]:
    return {kind: limit for kind, limit in given.items() if limit is not None}


def read_quotas(key: str, value: object) -> QuotaSettings:
    """The table [quotas]; InvalidSetting names what is wrong in it."""
    table = dict(_table(key, value))
    users = _table(f"{key}.{USER}", table.pop(USER, {}))
    tenants = _table(f"{key}.{TENANT}", table.pop(TENANT, {}))
    by_tenant: dict[str, Given] = {}
    users_by_tenant: dict[str, Given] = {}
    for tenant, given in tenants.items():
        own = dict(_table(f"{key}.{TENANT}.{tenant}", given))
        its_users = _table(f"{key}.{TENANT}.{tenant}.{USER}", own.pop(USER, {}))
        by_tenant[tenant] = _read(own, (*KINDS, USER))
        users_by_tenant[tenant] = _read(its_users, KINDS)
    return QuotaSettings(
        _read(table, (*KINDS, USER, TENANT)),
        _read(users, KINDS),
        by_tenant,
        users_by_tenant,
    )


def _table(key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidSetting(f"{key} {shown(value)} is not a table: write [{key}]")
    return value


def _read(table: dict[str, Any], known: tuple[str, ...]) -> Given:
    check_keys(table, known)
    return {kind: _limit(kind, value) for kind, value in table.items()}


def _limit(kind: str, value: object) -> int | None:
    if is_unlimited(value):
        return None
    if kind in _SIZES:
        return size_bytes(kind, value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < COUNT_MAX:
        raise InvalidSetting(
            f"{kind} {shown(value)} is not a quota: write a whole number above 0, or 'unlimited'"
        )
    return value
