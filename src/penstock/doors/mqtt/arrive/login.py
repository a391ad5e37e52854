"""Who a CONNECT comes from: a certificate, a user name and password, a key, a token, or nobody.

A key is the password of the user `key`. A token (JWT) is a password beside the name of its user, or
no name; the connection ends when the token expires.

Most clients are known at once. A password that has to be hashed first suspends its client: the
connection stays in WAIT_CONNACK, what it sends meanwhile is kept, and the connect timeout goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.broker.access import (
    BRIDGE,
    CERTIFICATE,
    KEY,
    KEY_PREFIX,
    KEY_USER,
    PASSWORD,
    TOKEN,
    Access,
    Admission,
    key_id_of,
)
from penstock.broker.session.known_clients import Credential
from penstock.core.access import NOBODY, Principal
from penstock.core.naming.names import quoted
from penstock.doors.mqtt.connection import Connection
from penstock.model.clock import Clock
from penstock.model.errors import NotAuthorized, UnavailableError
from penstock.mqtt.packets import Connect
from penstock.mqtt.reasons import Reason

Admit = Callable[[Connection, Connect], None]
Refuse = Callable[[Connection, Connect, Reason, str], None]

NOT_KNOWN: Final = "a user name and password are needed, or a certificate in a user's name"
NO_CREDENTIAL: Final = "none"  # the type of credential of an anonymous client
CERTIFICATE_NAME_CHARS_MAX: Final = 256  # of what is remembered of it
EXPIRED: Final = "the token has expired: connect again with a new one"


class Logins:
    """Answers each CONNECT with one call of `admit` or `refuse`, at once or later."""

    def __init__(
        self,
        access: Access,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        admit: Admit,
        refuse: Refuse,
    ) -> None:
        self._access = access
        self._clock = clock
        self._loop = loop
        self._admit = admit
        self._refuse = refuse
        self._waiting: dict[Connection, asyncio.Task[None]] = {}
        self._expiring: dict[Connection, asyncio.TimerHandle] = {}  # those with a token

    def ask(self, connection: Connection, packet: Connect) -> None:
        """Find out who this is; an admitted connection knows its principal."""
        user, password = packet.username, packet.password or b""
        access = self._access
        certificate = connection.certificate
        if connection.principal is not NOBODY:  # a client inside this process
            connection.proof = BRIDGE
            self._admit(connection, packet)
        elif certificate is not None:
            connection.proof = CERTIFICATE
            self._answer(connection, packet, access.certified(certificate))
        elif access.takes_token(password):
            connection.proof = TOKEN
            self._answer_token(connection, packet, password)
        elif user is None or not access.asks_login:
            # Without users there is nothing to check a name against: it counts for nothing.
            self._answer(connection, packet, access.anonymous(connection.source))
        elif user == KEY_USER and password.startswith(KEY_PREFIX.encode()):
            connection.proof = KEY
            self._answer_key(connection, packet, password)
        elif principal := access.recall(user, password):
            connection.proof = PASSWORD
            self._answer(connection, packet, principal)
        else:
            connection.proof = PASSWORD
            work = self._log_in(connection, packet, user, password)
            self._waiting[connection] = self._loop.create_task(work)

    def _answer(self, connection: Connection, packet: Connect, principal: Principal | None) -> None:
        if principal is None:
            if connection.certificate is None:
                self._access.count_stranger()
            else:
                self._access.count_wrong()
            self._refuse(connection, packet, Reason.NOT_AUTHORIZED, NOT_KNOWN)
        else:
            connection.principal = principal
            self._admit(connection, packet)

    def _answer_key(self, connection: Connection, packet: Connect, key: bytes) -> None:
        principal = self._access.keyed(key)
        if principal is None:
            reason = Reason.BAD_USER_NAME_OR_PASSWORD
            self._refuse(connection, packet, reason, "unknown or revoked key")
        else:
            self._answer(connection, packet, principal)

    def _answer_token(self, connection: Connection, packet: Connect, token: bytes) -> None:
        try:
            admission = self._access.tokened(token)
            check_bearer(admission, packet)
        except NotAuthorized as refused:
            self._refuse(connection, packet, Reason.BAD_USER_NAME_OR_PASSWORD, str(refused))
            return
        left_s = max(0.0, (admission.expires_us - self._clock.now_us()) / 1_000_000)
        self._expiring[connection] = self._loop.call_later(left_s, self._expire, connection)
        self._answer(connection, packet, admission.principal)

    def _expire(self, connection: Connection) -> None:
        if connection.session is None:  # it is still being let in
            connection.end_reason = EXPIRED
            connection.close()
        else:
            connection.end(Reason.MAXIMUM_CONNECT_TIME, EXPIRED)

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
        expiring = self._expiring.pop(connection, None)
        if expiring is not None:
            expiring.cancel()


def credential_of(connection: Connection, packet: Connect) -> Credential:
    """What a client that was let in has shown, to be remembered."""
    proof, certificate = connection.proof, connection.certificate
    if proof == CERTIFICATE and certificate is not None:
        # The authority may sign any name, and PostgreSQL stores no text with NUL.
        name = certificate.common_name.replace("\0", "")[:CERTIFICATE_NAME_CHARS_MAX]
        return Credential(proof, certificate.fingerprint, name)
    if proof == KEY:
        return Credential(proof, key_id_of((packet.password or b"").decode()), "")
    return Credential(proof or NO_CREDENTIAL, "", "")


def check_bearer(admission: Admission, packet: Connect) -> None:
    """NotAuthorized if the CONNECT says other things than its token."""
    who = admission.principal
    if packet.username and packet.username not in (who.user, f"{who.tenant}/{who.user}"):
        raise NotAuthorized(
            f"the token belongs to user {quoted(who.user)}, not {quoted(packet.username)}: leave "
            "the user name empty, or give that of the token"
        )
    if admission.client_id and packet.client_id != admission.client_id:
        raise NotAuthorized(
            f"the token is for the client id {quoted(admission.client_id)}: connect with that one"
        )
