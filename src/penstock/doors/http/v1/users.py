"""`/v1/users` and `/v1/keys`: who may log in, while the broker runs.

Whoever is let in may change them: there are no roles. Passwords and keys go one way, in.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.exchange import Exchange
from penstock.core.access import check_user
from penstock.core.names import quoted
from penstock.doors.http.door import HttpDoor
from penstock.doors.http.messages import HttpError, Request, Response, json_response
from penstock.doors.http.needs import Needs
from penstock.doors.http.router import Route
from penstock.doors.http.v1.describing import Facts
from penstock.doors.http.v1.reading import read_body
from penstock.doors.http.v1.types import KeyList, KeyMade, KeyOut, Password, UserList, UserOut
from penstock.doors.mqtt.connection import Connection
from penstock.mqtt.reasons import Reason

USERS: Final = "/v1/users"
USER: Final = USERS + "/{user}"
KEYS: Final = "/v1/keys"
KEY: Final = KEYS + "/{key_id}"


def add_routes(door: HttpDoor, exchange: Exchange) -> None:
    users = UsersDoor(exchange)
    for method, path, handler, facts in (
        ("GET", USERS, users.show_all, Facts("list the users", UserList)),
        (
            "PUT",
            USER,
            users.put,
            Facts(
                "add a user, or change the password; with If-None-Match: * an existing user is 409",
                UserOut,
                takes=Password,
                statuses=(200, 201),
                errors=(409,),
            ),
        ),
        (
            "DELETE",
            USER,
            users.remove,
            Facts(
                "remove a user, with the user's connections and keys",
                statuses=(204,),
                errors=(409,),
            ),
        ),
        (
            "POST",
            USER + "/keys",
            users.make_key,
            Facts("create a key of this user; it is shown once", KeyMade, statuses=(201,)),
        ),
        ("GET", KEYS, users.show_keys, Facts("list the ids of all keys", KeyList)),
        ("DELETE", KEY, users.revoke, Facts("revoke a key", statuses=(204,))),
    ):
        door.router.add(Route(method, path, handler, facts=facts, needs=Needs.ADMIN))


class UsersDoor:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._access = exchange.engine.access

    def show_all(self, request: Request) -> Response:
        users = [UserOut(row.user, row.created_at, row.changed_at) for row in self._access.users()]
        return json_response(UserList(users))

    async def put(self, request: Request) -> Response:
        user = check_user(request.params["user"])
        password = read_body(request, Password).password.encode()
        is_new = not self._is_known(user)
        if is_new:
            await self._access.add_user(user, password)
        elif request.header(b"if-none-match") == "*":
            raise HttpError(409, f"user {quoted(user)} already exists: choose another name")
        else:
            await self._access.set_password(user, password)
        (row,) = [row for row in self._access.users() if row.user == user]
        shown = UserOut(row.user, row.created_at, row.changed_at)
        return json_response(shown, 201 if is_new else 200)

    async def remove(self, request: Request) -> Response:
        user = self._find(request)
        if len(self._access.users()) == 1:
            # Without users everybody comes in, and this server may listen to the whole world.
            raise HttpError(
                409,
                f"user {quoted(user)} is the last one and cannot be removed while the broker runs: "
                "add another user first, or stop the broker and remove the user from the directory",
            )
        await self._access.remove_user(user)
        for session in list(self._exchange.sessions.connected.values()):
            outbox = session.outbox
            if isinstance(outbox, Connection) and outbox.principal.user == user:
                outbox.end(Reason.NOT_AUTHORIZED, f"user {quoted(user)} was removed")
        return Response(204)

    async def make_key(self, request: Request) -> Response:
        user = self._find(request)
        return json_response(KeyMade(user, await self._access.make_key(user)), 201)

    def show_keys(self, request: Request) -> Response:
        rows = self._access.access_keys()
        return json_response(
            KeyList([KeyOut(row.key_id, row.user, row.created_at) for row in rows])
        )

    async def revoke(self, request: Request) -> Response:
        key_id = request.params["key_id"]
        if not any(row.key_id == key_id for row in self._access.access_keys()):
            raise HttpError(404, f"there is no key {quoted(key_id)}: GET {KEYS} lists all keys")
        await self._access.revoke_key(key_id)
        return Response(204)

    def _is_known(self, user: str) -> bool:
        return any(row.user == user for row in self._access.users())

    def _find(self, request: Request) -> str:
        user = request.params["user"]
        if not self._is_known(user):
            raise HttpError(
                404,
                f"there is no user {quoted(user)} (names are case-sensitive): see "
                "`penstock user list`",
            )
        return user
