"""Who a CONNECT comes from: a certificate, a user name and password, or nobody in particular.

Most clients are known at once. A password that has to be hashed first suspends its client: the
connection stays in WAIT_CONNACK, what it sends meanwhile is kept, and the connect timeout goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.broker.access import Access
from penstock.core.access import Principal
from penstock.doors.mqtt.connection import Connection
from penstock.model.errors import NotAuthorized, UnavailableError
from penstock.mqtt.packets import Connect
from penstock.mqtt.reasons import Reason

Admit = Callable[[Connection, Connect], None]
Refuse = Callable[[Connection, Connect, Reason, str], None]

NOT_KNOWN: Final = "a user name and password are needed, or a certificate in a user's name"


class Logins:
    """Answers each CONNECT with one call of `admit` or `refuse`, at once or later."""

    def __init__(
        self, access: Access, loop: asyncio.AbstractEventLoop, admit: Admit, refuse: Refuse
    ) -> None:
        self._access = access
        self._loop = loop
        self._admit = admit
        self._refuse = refuse
        self._waiting: dict[Connection, asyncio.Task[None]] = {}

    def ask(self, connection: Connection, packet: Connect) -> None:
        """Find out who this is; an admitted connection knows its principal."""
        user, password = packet.username, packet.password or b""
        access = self._access
        if connection.certified_name is not None:
            self._answer(connection, packet, access.certified(connection.certified_name))
        elif user is None or not access.has_users:
            # Without users there is nothing to check a name against: it counts for nothing.
            self._answer(connection, packet, access.anonymous())
        elif principal := access.recall(user, password):
            self._answer(connection, packet, principal)
        else:
            work = self._log_in(connection, packet, user, password)
            self._waiting[connection] = self._loop.create_task(work)

    def _answer(self, connection: Connection, packet: Connect, principal: Principal | None) -> None:
        if principal is None:
            if connection.certified_name is None:
                self._access.count_stranger()
            else:
                self._access.count_wrong()
            self._refuse(connection, packet, Reason.NOT_AUTHORIZED, NOT_KNOWN)
        else:
            connection.principal = principal
            self._admit(connection, packet)

    async def _log_in(
        self, connection: Connection, packet: Connect, user: str, password: bytes
    ) -> None:
        reason, why = Reason.SUCCESS, ""
        try:
            connection.principal = await self._access.log_in(user, password, connection.source)
        except NotAuthorized as refused:
            reason, why = Reason.BAD_USER_NAME_OR_PASSWORD, str(refused)
        except UnavailableError as busy:
            reason, why = Reason.SERVER_BUSY, str(busy)
        self._waiting.pop(connection, None)
        if connection.is_closed:
            return
        if reason == Reason.SUCCESS:
            self._admit(connection, packet)
        else:
            self._refuse(connection, packet, reason, why)

    def forget(self, connection: Connection) -> None:
        """The connection is gone; nobody waits for the answer."""
        waiting = self._waiting.pop(connection, None)
        if waiting is not None:
            waiting.cancel()
