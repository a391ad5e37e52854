"""The users that `penstock user` works on: of a running broker, or of a directory nobody has open.

Both have the same methods, so commands need not know which they have.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from penstock.app.users import open_users
from penstock.broker.access import Access
from penstock.broker.settings import make_settings
from penstock.catalog.access.credentials import CredentialRow
from penstock.cli.remote import RunningBroker
from penstock.cli.target import filled_path, target_path
from penstock.config import storage_settings
from penstock.core.access import no_such_user
from penstock.model.errors import RefusedError
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.model.tenants import no_such_tenant

T = TypeVar("T")


class User(NamedTuple):
    """Times are µs since 1970, UTC."""

    user: str
    created_at: int
    changed_at: int
    roles: tuple[str, ...]


class Key(NamedTuple):
    key_id: str
    user: str
    created_at: int
    roles: tuple[str, ...]  # empty: those of the user


class Accounts(Protocol):
    """Changes are durable on return; RefusedError says why a change is rejected."""

    def users(self) -> list[User]: ...

    def has_users(self) -> bool:
        """Whether some tenant has users, so that clients have to log in."""
        ...

    def add(self, user: str, password: bytes, roles: Sequence[str]) -> User: ...

    def set_roles(self, user: str, roles: Sequence[str]) -> User: ...

    def set_password(self, user: str, password: bytes, *, keep_keys: bool) -> None: ...

    def remove(self, user: str) -> None: ...

    def make_key(self, user: str, roles: Sequence[str]) -> str: ...

    def access_keys(self) -> list[Key]: ...

    def revoke(self, key_id: str) -> None: ...


class ClosedDirectory(NamedTuple):
    """A tenant in a data directory that no broker has open; it is opened for each call."""

    path: Path
    tenant: TenantId
    config: str | None  # the settings file that its broker is started with

    def run(self, work: Callable[[Access], Awaitable[T]]) -> T:
        async def run() -> T:
            async with open_users(self.path, make_settings(storage_settings())) as access:
                if self.tenant not in access.tenants:
                    raise no_such_tenant(self.tenant)
                self.declare(access)
                return await work(access)

        return asyncio.run(run())

    def declare(self, access: Access) -> None:
        """Count what the settings file says about access, as its broker does."""
        if self.config is not None:
            from penstock.config import load

            settings = load(Path(self.config), {})
            access.allow_anonymous = settings.values["access.allow_anonymous"]
            access.roles.declare(settings.roles, settings.rules)


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="settings file of the broker, for the roles and rules in it; not needed while the "
        "broker runs",
    )


def closed_directory(options: argparse.Namespace, *, create: bool) -> ClosedDirectory:
    """The directory that a command means; only commands that create may make it."""
    path = target_path(options) if create else filled_path(options)
    return ClosedDirectory(path, TenantId(options.of_tenant or DEFAULT_TENANT), options.config)


class DirectoryAccounts:
    """Of a data directory that no broker has open."""

    def __init__(self, closed: ClosedDirectory) -> None:
        self._tenant = closed.tenant
        self._with = closed.run

    def users(self) -> list[User]:
        async def work(access: Access) -> list[User]:
            return [_user(row) for row in access.users(self._tenant)]

        return self._with(work)

    def has_users(self) -> bool:
        async def work(access: Access) -> bool:
            return bool(access.users(None))

        return self._with(work)

    def add(self, user: str, password: bytes, roles: Sequence[str]) -> User:
        tenant = self._tenant
        return _user(self._with(lambda access: access.add_user(user, password, roles, tenant)))

    def set_roles(self, user: str, roles: Sequence[str]) -> User:
        tenant = self._tenant
        return _user(self._with(lambda access: access.set_roles(user, roles, tenant)))

    def set_password(self, user: str, password: bytes, *, keep_keys: bool) -> None:
        tenant = self._tenant
        self._with(lambda access: access.set_password(user, password, tenant, keep_keys=keep_keys))

    def remove(self, user: str) -> None:
        self._with(lambda access: access.remove_user(user, self._tenant))

    def make_key(self, user: str, roles: Sequence[str]) -> str:
        return self._with(lambda access: access.make_key(user, roles, self._tenant))

    def access_keys(self) -> list[Key]:
        async def work(access: Access) -> list[Key]:
            return [
                Key(row.key_id, row.user, row.created_at, row.roles)
                for row in access.access_keys(self._tenant)
            ]

        return self._with(work)

    def revoke(self, key_id: str) -> None:
        self._with(lambda access: access.revoke_key(key_id, self._tenant))


class BrokerAccounts:
    """Of a running broker, over HTTP; what changes holds at once."""

    def __init__(self, broker: RunningBroker) -> None:
        self._ask = broker.ask

    def users(self) -> list[User]:
        found = self._ask("GET", "/v1/users")["users"]
        return [_told(one) for one in found]

    def has_users(self) -> bool:
        return True  # a running broker keeps its last user

    def add(self, user: str, password: bytes, roles: Sequence[str]) -> User:
        body = {"password": _text(password), "roles": list(roles)}
        return _told(self._ask("PUT", _path(user), body, **{"If-None-Match": "*"}))

    def set_roles(self, user: str, roles: Sequence[str]) -> User:
        self._check_known(user)
        return _told(self._ask("PUT", _path(user), {"roles": list(roles)}))

    def set_password(self, user: str, password: bytes, *, keep_keys: bool) -> None:
        self._check_known(user)
        self._ask("PUT", _path(user), {"password": _text(password), "keep_keys": keep_keys})

    def _check_known(self, user: str) -> None:
        if user not in [one.user for one in self.users()]:
            raise no_such_user(user)

    def remove(self, user: str) -> None:
        self._ask("DELETE", _path(user))

    def make_key(self, user: str, roles: Sequence[str]) -> str:
        body = {"roles": list(roles)} if roles else None  # which brokers before roles take, too
        return str(self._ask("POST", f"{_path(user)}/keys", body)["key"])

    def access_keys(self) -> list[Key]:
        found = self._ask("GET", "/v1/keys")["keys"]
        return [
            Key(one["key_id"], one["user"], one["created_at"], tuple(one.get("roles", ())))
            for one in found
        ]

    def revoke(self, key_id: str) -> None:
        if key_id not in [one.key_id for one in self.access_keys()]:
            raise no_such_key(key_id)
        self._ask("DELETE", f"/v1/keys/{quote(key_id, safe='')}")


def no_such_key(key_id: str) -> RefusedError:
    return RefusedError(f"there is no key {key_id!r}: see `penstock key list`")


def _user(row: CredentialRow) -> User:
    return User(row.user, row.created_at, row.changed_at, row.roles)


def _told(one: dict[str, Any]) -> User:
    """A user as the broker tells it; before roles there was no field for them."""
    return User(one["user"], one["created_at"], one["changed_at"], tuple(one.get("roles", ())))


def _path(user: str) -> str:
    return f"/v1/users/{quote(user, safe='')}"


def _text(password: bytes) -> str:
    try:
        return password.decode()
    except UnicodeDecodeError:
        raise RefusedError(
            "the password is not UTF-8, which HTTP requires: choose another password, or stop the "
            "broker and give its directory with --at"
        ) from None
