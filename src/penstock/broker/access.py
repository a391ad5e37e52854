"""Who may come in: users and their passwords, tokens, certificates, and anonymous clients (law 9).

While no user exists and no tokens are accepted, clients of this machine come in without a login and
no other address is listened on; else nobody comes in without one. `allow_anonymous` lifts both.

A login never holds up the event loop. It waits in the line of its network (broker/login_lines.py);
a wrong one keeps its place for a while, so that guessing is slow and one guesser cannot use up what
the others need. An unknown user costs what a wrong password costs.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import secrets
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.broker.login_lines import LoginLines, Place
from penstock.broker.metrics import Metrics
from penstock.broker.passwords import Passwords
from penstock.broker.tokens import Tokens, looks_like_token
from penstock.catalog.access_keys import AccessKeyRow
from penstock.catalog.credentials import CredentialRow, Credentials
from penstock.core.access import Principal, Principals, check_user
from penstock.core.names import quoted
from penstock.core.networks import network_of
from penstock.model.errors import InvalidName, InvalidSetting, NotAuthorized, UnavailableError
from penstock.model.record import DEFAULT_TENANT

KEY_PREFIX: Final = "psk_"  # so that a key is recognised where it should not be
KEY_USER: Final = "key"  # the user name of MQTT clients whose password is a key
KEY_BYTES: Final = 32
KEY_ID_CHARS: Final = 10
WRONG_LOGIN_S: Final = 1.0  # how long a wrong login keeps its place


class Admission(NamedTuple):
    """What a token allows its bearer."""

    principal: Principal
    client_id: str  # the only one to connect with; '' for any
    expires_us: int


class Access:
    """The users, kept in memory and in step with the catalog."""

    def __init__(
        self,
        credentials: Credentials,
        metrics: Metrics,
        *,
        wrong_login_s: float = WRONG_LOGIN_S,
    ) -> None:
        self.allow_anonymous = False
        self.tokens: Tokens | None = None  # None: tokens are not accepted
        self._credentials = credentials
        self._metrics = metrics
        self._wrong_login_s = wrong_login_s
        self._passwords = Passwords()
        self._principals = Principals()
        self._users: dict[str, CredentialRow] = {}
        self._keys: dict[str, AccessKeyRow] = {}  # by digest
        self._decoy = ""  # a hash that no password was made for
        self._lines = LoginLines()
        self._logins: set[asyncio.Task[Principal | None]] = set()

    async def load(self) -> None:
        self._users = {row.user: row for row in await self._credentials.load()}
        self._keys = {row.digest: row for row in await self._credentials.keys.load()}

    async def prepare_logins(self) -> None:
        """Make ready to tell unknown users from known ones by nothing, not even the first time."""
        if not self._decoy:
            self._decoy = await self._passwords.hash(secrets.token_bytes(16))

    def close(self) -> None:
        """Give up the logins under way."""
        for login in self._logins:
            login.cancel()
        self._passwords.close()

    # Users

    @property
    def asks_login(self) -> bool:
        """Whether there is a way to log in, so that clients have to."""
        return bool(self._users) or self.tokens is not None

    def users(self) -> list[CredentialRow]:
        return sorted(self._users.values(), key=lambda row: row.user)

    async def add_user(self, user: str, password: bytes) -> None:
        """Durable on return; RefusedError when the user exists."""
        stored = await self._passwords.hash(password)
        row = await self._credentials.insert(DEFAULT_TENANT, check_user(user), stored)
        self._users[user] = row

    async def set_password(self, user: str, password: bytes) -> None:
        """The old password is good for nothing on return."""
        stored = await self._passwords.hash(password)
        row = await self._credentials.update(DEFAULT_TENANT, user, stored)
        self._forget(user)
        self._users[user] = row

    async def remove_user(self, user: str) -> None:
        await self._credentials.delete(DEFAULT_TENANT, user)
        self._forget(user)
        self._keys = {digest: row for digest, row in self._keys.items() if row.user != user}

    def _forget(self, user: str) -> None:
        row = self._users.pop(user, None)
        if row is not None:
            self._passwords.forget(row.password_hash)

    # Keys

    def access_keys(self) -> list[AccessKeyRow]:
        return sorted(self._keys.values(), key=lambda row: (row.user, row.created_at))

    async def make_key(self, user: str) -> str:
        """A new key of a user; it is shown once and cannot be found out again."""
        key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
        digest = _digest(key.encode())
        keys = self._credentials.keys
        row = await keys.insert(DEFAULT_TENANT, user, key_id_of(key), digest)
        self._keys[digest] = row
        return key

    async def revoke_key(self, key_id: str) -> None:
        """The key is good for nothing on return."""
        await self._credentials.keys.delete(DEFAULT_TENANT, key_id)
        self._keys = {digest: row for digest, row in self._keys.items() if row.key_id != key_id}

    # Coming in

    def anonymous(self) -> Principal | None:
        """Who a client without a login is; None when it has to log in."""
        if self.allow_anonymous or not self.asks_login:
            return self._principals.get("")
        return None

    def local(self) -> Principal:
        """Who a command is that came over the socket in the data directory: an operator."""
        return self._principals.get("")

    def principal(self, user: str) -> Principal:
        """Who a user is who was let in before; '' for an anonymous client."""
        return self._principals.get(user)

    def certified(self, common_name: str) -> Principal | None:
        """Who the owner of a certificate is that the listener's authority signed."""
        with suppress(InvalidName):
            return self._principals.get(check_user(common_name))
        return None

    def keyed(self, key: bytes) -> Principal | None:
        """Whose key this is; None if nobody's."""
        row = self._keys.get(_digest(key))
        if row is None:
            self.count_wrong()
            return None
        return self._principals.get(row.user)

    def takes_token(self, secret: bytes) -> bool:
        """Whether this is to be checked as a token: it looks like one, and tokens are accepted."""
        return self.tokens is not None and looks_like_token(secret)

    def tokened(self, text: bytes) -> Admission:
        """What the bearer of a token may do; NotAuthorized if it is not accepted."""
        assert self.tokens is not None, "takes_token was asked before"
        try:
            token = self.tokens.check(text)
            user = check_user(token.user)
            if token.tenant not in ("", DEFAULT_TENANT):
                raise NotAuthorized(f"the token's tenant {quoted(token.tenant)} does not exist")
        except InvalidName as wrong:
            self.count_wrong()
            raise NotAuthorized(f"the token is not accepted: {wrong}") from None
        except NotAuthorized:
            self.count_wrong()
            raise
        return Admission(self._principals.get(user), token.client_id, token.expires_us)

    def count_wrong(self) -> None:
        """A client was refused because what it showed lets nobody in."""
        self._metrics.refused["login"] += 1

    def count_stranger(self) -> None:
        """A client was refused because it did not log in."""
        self._metrics.refused["anonymous"] += 1

    def recall(self, user: str, password: bytes) -> Principal | None:
        """Who logs in, if this password was found right before. Costs microseconds."""
        row = self._users.get(user)
        if row is not None and self._passwords.recall(row.password_hash, password):
            return self._principals.get(user)
        return None

    async def log_in(self, user: str, password: bytes, source: str) -> Principal:
        """Who this is; NotAuthorized after a while if user and password do not fit.

        `source` is the address the client comes from. UnavailableError when too many wait.
        A caller that goes away gives up the answer, not the place.
        """
        try:
            place = self._lines.join(network_of(source))
            login = asyncio.get_running_loop().create_task(self._log_in(user, password, place))
            self._logins.add(login)
            login.add_done_callback(self._finish)
            principal = await asyncio.shield(login)
        except UnavailableError:
            self._metrics.refused["login_busy"] += 1
            raise
        if principal is None:
            raise NotAuthorized("wrong user name or password")
        return principal

    def _finish(self, login: asyncio.Task[Principal | None]) -> None:
        self._logins.discard(login)
        if not login.cancelled():
            login.exception()  # who waited for it may be gone

    async def _log_in(self, user: str, password: bytes, place: Place) -> Principal | None:
        async with place:
            if principal := self.recall(user, password):
                return principal  # a twin in the line was first
            await self.prepare_logins()
            row = self._users.get(user)
            stored = self._decoy if row is None else row.password_hash
            is_right = await self._passwords.verify(stored, password)
            if is_right and row is not None:
                if self._users.get(user) is row:
                    return self._principals.get(user)
                self._passwords.forget(stored)  # removed or changed meanwhile
            self._metrics.refused["login"] += 1
            await asyncio.sleep(self._wrong_login_s)
            return None

    # Listening

    def check_exposure(self, host: str, *, takes_anybody: bool = True) -> None:
        """Refuse to listen where strangers could come in and nobody wrote that down.

        A listener that demands certificates does not take anybody.
        """
        if self.asks_login or self.allow_anonymous or not takes_anybody:
            return
        if not is_loopback(host):
            raise InvalidSetting(
                f"listening on {host} would accept everybody, because no user exists: add a user "
                "(penstock user add), listen on 127.0.0.1, or use --allow-anonymous"
            )


def key_id_of(key: str) -> str:
    """The id that a key is listed and revoked by."""
    return _digest(key.encode())[:KEY_ID_CHARS]


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    with suppress(ValueError):  # a name, not an address
        return ipaddress.ip_address(host).is_loopback
    return False
