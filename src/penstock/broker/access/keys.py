"""The keys of all users, kept in memory and in step with the catalog."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Sequence
from typing import Final

from penstock.catalog.access.access_keys import AccessKeyRow, AccessKeys
from penstock.model.record import TenantId

KEY_PREFIX: Final = "psk_"  # so that a key is recognised where it should not be
KEY_USER: Final = "key"  # the user name of MQTT clients whose password is a key
KEY_BYTES: Final = 32
KEY_ID_CHARS: Final = 10


class Keys:
    """Changes are durable on return."""

    def __init__(self, catalog: AccessKeys) -> None:
        self._catalog = catalog
        self._keys: dict[str, AccessKeyRow] = {}  # by digest

    async def load(self) -> None:
        self._keys = {row.digest: row for row in await self._catalog.load()}

    def all(self, tenant: TenantId) -> list[AccessKeyRow]:
        rows = [row for row in self._keys.values() if row.tenant == tenant]
        return sorted(rows, key=lambda row: (row.user, row.created_at))

    def find(self, key: bytes) -> AccessKeyRow | None:
        return self._keys.get(_digest(key))

    def has(self, digest: str) -> bool:
        return digest in self._keys

    async def make(self, user: str, roles: Sequence[str], tenant: TenantId) -> str:
        key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
        digest = _digest(key.encode())
        row = await self._catalog.insert(tenant, user, key_id_of(key), digest, roles=roles)
        self._keys[digest] = row
        return key

    async def revoke(self, key_id: str, tenant: TenantId) -> AccessKeyRow | None:
        """What the key was; None if somebody else revoked it at the same time."""
        await self._catalog.delete(tenant, key_id)
        gone = [row for row in self.all(tenant) if row.key_id == key_id]
        for row in gone:
            del self._keys[row.digest]
        return gone[0] if gone else None

    def forget_users(self, users: Collection[str], tenant: TenantId) -> None:
        """The catalog has no keys of these users any more."""
        self._keys = {
            digest: row
            for digest, row in self._keys.items()
            if row.tenant != tenant or row.user not in users
        }


def key_id_of(key: str) -> str:
    """The id that a key is listed and revoked by."""
    return _digest(key.encode())[:KEY_ID_CHARS]


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()
