"""A tenant, as it is kept and shown."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import RefusedError
from penstock.model.record import TenantId


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """A tenant and whom to ask about it."""

    tenant: TenantId
    first_name: str
    last_name: str
    email: str
    created_at: int  # µs since 1970, UTC


def no_such_tenant(tenant: str) -> RefusedError:
    return RefusedError(f"there is no tenant {tenant!r}: see `penstock tenant list`")
