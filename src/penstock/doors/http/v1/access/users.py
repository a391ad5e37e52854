"""`/v1/users` and `/v1/keys`: who may log in, while the broker runs.

Only admins ask. Passwords and keys go one way, in.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from penstock.broker.access import AccessKeyRow, CredentialRow
from penstock.broker.exchange import Exchange
from penstock.core.access import OPERATOR, check_user, no_such_user
from penstock.core.naming.names import quoted
from penstock.core.quotas import KEYS as KEYS_QUOTA
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.errors import with_status
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.v1.describing import Facts
from penstock.doors.http.v1.reading import read_body
from penstock.doors.http.v1.types import KeyIn, KeyList, KeyMade, KeyOut, UserIn, UserList, UserOut
from penstock.doors.http.wire.messages import HttpError, Request, Response, json_response
from penstock.model.errors import NotAuthorized, RefusedError
from penstock.model.record import TenantId

USERS: Final = "/v1/users"
USER: Final = USERS + "/{user}"
KEYS: Final = "/v1/keys"
KEY: Final = KEYS + "/{key_id}"


def add_routes(door: Endpoints, exchange: Exchange) -> None:
    users = UsersDoor(exchange)
    for method, path, handler, facts in (
        ("GET", USERS, users.show_all, Facts("list the users", UserList)),
        ("GET", USER, users.show, Facts("show a user", UserOut)),
        (
            "PUT",
            USER,
            users.put,
            Facts(
                "add a user, or change the password or the roles; the first user becomes admin, "
                "others are clients; a new password revokes the keys of the user unless keep_keys "
                "is true; with If-None-Match: * an existing user is 409",
                UserOut,
                takes=UserIn,
                statuses=(200, 201),
                errors=(409,),
            ),
        ),
        (
            "DELETE",
            USER,
            users.remove,
            Facts(
                "remove a user, with the user's keys, connections and streams",
                statuses=(204,),
                errors=(409,),
            ),
        ),
        (
            "POST",
            USER + "/keys",
            users.make_key,
            Facts(
                "create a key of this user; it is shown once",
                KeyMade,
                takes=KeyIn,
                statuses=(201,),
                errors=(409,),
            ),
        ),
        ("GET", KEYS, users.show_keys, Facts("list the ids of all keys", KeyList)),
        ("GET", KEY, users.show_key, Facts("show whose a key is, and its roles", KeyOut)),
        ("DELETE", KEY, users.revoke, Facts("revoke a key", statuses=(204,))),
    ):
        door.router.add(Route(method, path, handler, facts=facts, needs=Needs.ADMIN))


class UsersDoor:
    def __init__(self, exchange: Exchange) -> None:
        self._access = exchange.engine.access
        self._tenant = exchange.engine.tenant
        self._quotas = exchange.engine.quotas

    def show_all(self, request: Request) -> Response:
        return json_response(UserList([_out(row) for row in self._access.users(self._tenant)]))

    def show(self, request: Request) -> Response:
        return json_response(_out(self._access.user(self._known(request), self._tenant)))

    async def put(self, request: Request) -> Response:
        user = check_user(request.params["user"])
        asked = read_body(request, UserIn)
        roles = [] if asked.roles is UNSET else asked.roles
        tenant = self._tenant
        if OPERATOR in roles:
            _check_operator(request)
        self._check_roles(roles, tenant)
        is_new = not self._is_known(user, tenant)
        if is_new:
            if asked.password is UNSET:
                raise HttpError(
                    404, f"there is no user {quoted(user)}: give a password to add this user"
                )
            await self._access.add_user(user, asked.password.encode(), roles, tenant)
        elif request.header(b"if-none-match") == "*":
            raise HttpError(409, f"user {quoted(user)} already exists: choose another name")
        else:
            self._find(request)
            if asked.password is not UNSET:
                password = asked.password.encode()
                await self._access.set_password(user, password, tenant, keep_keys=asked.keep_keys)
            if asked.roles is not UNSET:
                await self._access.set_roles(user, asked.roles, tenant)
        return json_response(_out(self._access.user(user, tenant)), 201 if is_new else 200)

    def _check_roles(self, roles: list[str], tenant: TenantId) -> None:
        """HttpError 409 for a role that the tenant does not have."""
        for role in roles:
            try:
                self._access.roles.check(role, tenant)
            except RefusedError as unknown:
                raise HttpError(409, str(unknown)) from None

    async def remove(self, request: Request) -> Response:
        user, tenant = self._find(request), self._tenant
        # Without users everybody comes in, and this server may listen to the whole world.
        last = (
            f"user {quoted(user)} is the last one and cannot be removed while the broker runs: "
            "add another user first, or stop the broker and remove the user from the directory"
        )
        try:
            await self._access.remove_user(user, tenant, last_stays=last)
        except RefusedError as refused:
            raise HttpError(409, str(refused)) from None
        return Response(204)

    async def make_key(self, request: Request) -> Response:
        user, tenant = self._find(request), self._tenant
        roles = read_body(request, KeyIn).roles
        owners = [row.user for row in self._access.access_keys(tenant)]
        self._check_roles(roles, tenant)
        with self._quotas.making_own(KEYS_QUOTA, len(owners), user, owners.count(user)):
            key = await self._access.make_key(user, roles, tenant)
        return json_response(KeyMade(user, key), 201)

    def show_keys(self, request: Request) -> Response:
        rows = self._access.access_keys(self._tenant)
        return json_response(KeyList([_key_out(row) for row in rows]))

    def show_key(self, request: Request) -> Response:
        return json_response(_key_out(self._key(request)))

    async def revoke(self, request: Request) -> Response:
        await self._access.revoke_key(self._key(request).key_id, self._tenant)
        return Response(204)

    def _key(self, request: Request) -> AccessKeyRow:
        key_id = request.params["key_id"]
        for row in self._access.access_keys(self._tenant):
            if row.key_id == key_id:
                return row
        raise HttpError(404, f"there is no key {quoted(key_id)}: see `penstock key list`")

    def _is_known(self, user: str, tenant: TenantId) -> bool:
        return any(row.user == user for row in self._access.users(tenant))

    def _known(self, request: Request) -> str:
        """The user of the path."""
        user = request.params["user"]
        if not self._is_known(user, self._tenant):
            raise with_status(no_such_user(user), 404)
        return user

    def _find(self, request: Request) -> str:
        """The user of the path, whom the one who asks may change."""
        user = self._known(request)
        if OPERATOR in self._access.user(user, self._tenant).roles:
            _check_operator(request)
        return user


def _check_operator(request: Request) -> None:
    if not request.principal.grants.is_operator:
        raise NotAuthorized("only an operator adds or changes users with the role operator")


def _key_out(row: AccessKeyRow) -> KeyOut:
    return KeyOut(row.key_id, row.user, row.created_at, [*row.roles])


def _out(row: CredentialRow) -> UserOut:
    return UserOut(row.user, row.created_at, row.changed_at, list(row.roles))
