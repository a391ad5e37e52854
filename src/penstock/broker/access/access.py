"""Who may come in, and as whom: users with passwords or keys, tokens, certificates, anonymous.

While no user exists and no tokens are accepted, clients of this machine come in without a login, as
admins of the default tenant, and no other address is listened on; else nobody comes in without one.
`allow_anonymous` lifts both, and gives anonymous clients the role `client`.

Access holds for all tenants. A login name is a user of the default tenant, or `tenant/user`; a
user whose name contains a '/' from earlier versions is found by the whole name first. After every
change of users, roles, rules or keys the principals that are known have their new grants, or are
revoked if what they came in with is no longer good. Then doors and tenants hear of it.

A login never holds up the event loop. It waits in the line of its network (login_lines.py);
a wrong one keeps its place for a while, so that guessing is slow and one guesser cannot use up what
the others need. An unknown user costs what a wrong password costs.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from penstock.broker.access.certificates import CertificateRules
from penstock.broker.access.identities import (
    BRIDGE,
    CERTIFICATE,
    DIRECTORY,
    KEY,
    LOCAL,
    PASSWORD,
    REMOVED,
    TOKEN,
    Admission,
    Identity,
    by_password,
    check_key_roles,
    digest,
    held_roles,
    removal,
)
from penstock.broker.access.keys import Keys
from penstock.broker.access.known_principals import KnownPrincipals
from penstock.broker.access.login_lines import LoginLines, Place
from penstock.broker.access.passwords import Passwords
from penstock.broker.access.renewal import Renewals, Tenants
from penstock.broker.access.roles import Roles
from penstock.broker.access.tokens import Tokens, looks_like_token
from penstock.broker.figures.metrics import Metrics
from penstock.catalog.access.access_keys import AccessKeyRow
from penstock.catalog.access.credentials import CredentialRow, Credentials
from penstock.core.access import (
    ADMIN,
    CLIENT,
    Grants,
    Principal,
    check_new_user,
    check_user,
    no_such_user,
)
from penstock.core.naming.names import quoted
from penstock.core.networks import is_loopback, network_of
from penstock.model.certificate import Certificate
from penstock.model.errors import InvalidName, NotAuthorized, UnavailableError
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.model.will import Login

WRONG_LOGIN_S: Final = 1.0  # how long a wrong login keeps its place
_LOCAL_CLIENT: Final = Identity(DEFAULT_TENANT, "", LOCAL)
_ANONYMOUS: Final = Identity(DEFAULT_TENANT, "")

OnChange = Callable[[set[Principal]], None]  # those concerned


class Access:
    """The users, kept in memory and in step with the catalog."""

    def __init__(
        self, credentials: Credentials, metrics: Metrics, *, wrong_login_s: float = WRONG_LOGIN_S
    ) -> None:
        self.on_change: list[OnChange] = []
        self.on_tenant_change: dict[TenantId, list[Callable[[], None]]] = defaultdict(list)
        self.edition = 0  # rises before anybody may be somebody else than before, or nobody
        self.certificates = CertificateRules()
        self.tokens: Tokens | None = None  # None: tokens are not accepted
        self.tenants: Container[str] = (DEFAULT_TENANT,)  # those that somebody can log in to
        self.known = KnownPrincipals()
        self._renewals = Renewals(self._renew, self._tell)
        changes = (self._everybody_changed, self._user_changed, self._lose_role)
        self.roles = Roles(credentials.roles, *changes, self._renewals.wait)
        self._allow_anonymous = False
        self._credentials = credentials
        self._metrics = metrics
        self._wrong_login_s = wrong_login_s
        self._passwords = Passwords()
        self._revoked_certificates: frozenset[str] = frozenset()  # their numbers
        self._users: dict[tuple[TenantId, str], CredentialRow] = {}
        self._keys = Keys(credentials.keys)
        self._decoy = ""  # a hash that no password was made for
        self._lines = LoginLines()
        self._logins: set[asyncio.Task[Principal | None]] = set()

    async def load(self) -> None:
        await self.roles.load()
        self._users = {(row.tenant, row.user): row for row in await self._credentials.load()}
        await self._keys.load()
        self._everybody_changed()

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
    def allow_anonymous(self) -> bool:
        return self._allow_anonymous

    @allow_anonymous.setter
    def allow_anonymous(self, is_allowed: bool) -> None:
        self._allow_anonymous = is_allowed
        self._everybody_changed()

    @property
    def asks_login(self) -> bool:
        """Whether there is a way to log in, so that clients have to."""
        return bool(self._users) or self.tokens is not None

    def users(self, tenant: TenantId | None = DEFAULT_TENANT) -> list[CredentialRow]:
        """Those of a tenant; of all tenants if it is None."""
        rows = [row for row in self._users.values() if tenant in (None, row.tenant)]
        return sorted(rows, key=lambda row: row.user)

    def user(self, user: str, tenant: TenantId = DEFAULT_TENANT) -> CredentialRow:
        """RefusedError when there is no such user."""
        row = self._users.get((tenant, user))
        if row is None:
            raise no_such_user(user)
        return row

    async def add_user(
        self,
        user: str,
        password: bytes,
        roles: Sequence[str] = (),
        tenant: TenantId = DEFAULT_TENANT,
    ) -> CredentialRow:
        """Durable on return; RefusedError when the user exists.

        Without roles, the first user of a tenant becomes admin, and every other one a client.
        """
        for role in roles:
            self.roles.check(role, tenant)
        check_new_user(user)
        stored = await self._passwords.hash(password)
        first = None if roles else (ADMIN,)
        row = await self._credentials.insert(tenant, user, stored, roles or (CLIENT,), first)
        self._users[tenant, user] = row
        if len(self._users) == 1:
            self._everybody_changed()  # anonymous clients
        else:
            self._user_changed(tenant, user)
        return row

    async def set_password(
        self,
        user: str,
        password: bytes,
        tenant: TenantId = DEFAULT_TENANT,
        *,
        keep_keys: bool = False,
    ) -> None:
        """The old password is good for nothing on return, and the user's keys neither.

        Who knew the old password may have made keys; `keep_keys` says that they are good.
        """
        stored = await self._passwords.hash(password)
        row = await self._credentials.update(tenant, user, stored, keep_keys=keep_keys)
        self._forget(user, tenant)
        if not keep_keys:
            self._keys.forget_users({user}, tenant)
        self._users[tenant, user] = row
        self._user_changed(tenant, user)

    async def set_roles(
        self, user: str, roles: Sequence[str], tenant: TenantId = DEFAULT_TENANT
    ) -> CredentialRow:
        """Exactly these roles from now on; durable on return."""
        for role in roles:
            self.roles.check(role, tenant)
        held = tuple(sorted(set(roles)))
        await self._credentials.roles.set_user_roles(tenant, user, held)
        row = self._users[tenant, user] = replace(self.user(user, tenant), roles=held)
        self._user_changed(tenant, user)
        return row

    def _lose_role(self, role: str, tenant: TenantId) -> None:
        """Nobody has the role any more, in the catalog either."""
        for key, row in self._users.items():
            if row.tenant == tenant and role in row.roles:
                left = tuple(one for one in row.roles if one != role)
                self._users[key] = replace(row, roles=left)

    async def remove_user(
        self, user: str, tenant: TenantId = DEFAULT_TENANT, *, last_stays: str = ""
    ) -> None:
        """With the user's roles, rules and keys; `last_stays`: see `Credentials.delete`."""
        await self._credentials.delete(tenant, user, last_stays=last_stays)
        self._removed({user}, tenant)

    async def remove_users(self, tenant: TenantId, *, last_stays: str = "") -> None:
        """All users of a tenant, or none of them."""
        users = await self._credentials.delete_all(tenant, last_stays=last_stays)
        self._removed(frozenset(users), tenant)

    def _removed(self, users: Collection[str], tenant: TenantId) -> None:
        for user in users:
            self._forget(user, tenant)
        self._keys.forget_users(users, tenant)
        self.roles.forget_users(users, tenant)
        gone = self.known.of_users(tenant, users)  # also who came with a token of such a name
        self._tell({tenant}, {self.known.revoke(one, removal(one.user)) for one in gone})
        if not self._users:
            self._everybody_changed()  # certificates and anonymous clients

    def _forget(self, user: str, tenant: TenantId) -> None:
        row = self._users.pop((tenant, user), None)
        if row is not None:
            self._passwords.forget(row.password_hash)

    # Keys

    def access_keys(self, tenant: TenantId = DEFAULT_TENANT) -> list[AccessKeyRow]:
        return self._keys.all(tenant)

    async def make_key(
        self, user: str, roles: Sequence[str] = (), tenant: TenantId = DEFAULT_TENANT
    ) -> str:
        """A new key of a user; it is shown once and cannot be found out again.

        It has the roles of its user, or those given: an admin's key may have any, another user's
        key some of the user's.
        """
        held = self.user(user, tenant).roles
        check_key_roles(user, held, [self.roles.check(role, tenant) for role in roles])
        return await self._keys.make(user, roles, tenant)

    async def revoke_key(self, key_id: str, tenant: TenantId = DEFAULT_TENANT) -> None:
        """The key is good for nothing on return."""
        row = await self._keys.revoke(key_id, tenant)
        if row is not None:
            self._user_changed(tenant, row.user)

    # Principals

    def get(self, identity: Identity) -> Principal:
        """One object for each identity, made when it is first seen."""
        principal = self.known.get(identity)
        if principal is None:
            if self._refusal(identity):
                return Principal(identity.tenant, identity.user)
            principal = Principal(identity.tenant, identity.user, self._grants(identity))
            self.known.add(identity, principal)
        return principal

    def login_of(self, principal: Principal) -> Login:
        """How a principal came in, to be stored with what it leaves."""
        identity = self.known.identity_of(principal)
        if identity is not None:
            return identity.login
        return Login(REMOVED if principal.is_revoked else "")

    def with_login(self, tenant: TenantId, user: str, login: Login) -> Principal:
        """Who came in like this before; somebody who may nothing if that is no longer good."""
        proof, roles, credential = login
        if not proof and not user and not self.asks_login:
            proof = LOCAL
        if proof == PASSWORD:
            row = self._users.get((tenant, user))
            if row is None or digest(row.password_hash) != credential:
                return Principal(tenant, user)
            credential = row.password_hash
        return self.get(Identity(tenant, user, proof, roles, credential))

    def _refusal(self, identity: Identity) -> str:
        """Why nobody comes in like this any more; '' if they do."""
        tenant, user, proof, _, credential = identity
        if not user:
            is_let_in = self._allow_anonymous or (proof == LOCAL and not self.asks_login)
            return "" if is_let_in or proof == DIRECTORY else "every client has to log in now"
        if proof == BRIDGE:
            return ""
        row = self._users.get((tenant, user))
        if proof == TOKEN:
            return "" if self.tokens is not None else "tokens are no longer accepted"
        if proof == CERTIFICATE and credential in self._revoked_certificates:
            return "the certificate was revoked"
        if proof == REMOVED or row is None:
            if proof == CERTIFICATE and (self.certificates.unknown_users or not self._users):
                return ""
            return removal(user) if proof != CERTIFICATE else f"there is no user {quoted(user)}"
        if proof == PASSWORD and credential != row.password_hash:
            return f"the password of user {quoted(user)} was changed"
        if proof == KEY and not self._keys.has(credential):
            return "the key was revoked"
        return ""

    def _grants(self, identity: Identity) -> Grants:
        """What somebody who comes in like this may do now."""
        tenant, user, *_ = identity
        row = self._users.get((tenant, user))
        given = None if row is None else row.roles
        roles = held_roles(identity, given, is_trusting=not self.asks_login)
        return self.roles.grants(tenant, user, roles)

    def _everybody_changed(self, tenant: TenantId | None = None) -> None:
        self.edition += 1
        self._renewals.begin([one for one in self.known if tenant in (None, one.tenant)], tenant)

    def _user_changed(self, tenant: TenantId, user: str) -> None:
        self._tell({tenant}, self._renew(self.known.of_user(tenant, user)))

    def _tell(self, tenants: Tenants, concerned: set[Principal]) -> None:
        self.edition += 1
        for listener in self.on_change:
            listener(concerned)
        for tenant, listeners in list(self.on_tenant_change.items()):
            if tenant in tenants or None in tenants:
                for renew in listeners:
                    renew()

    def revoke_certificates(self, numbers: frozenset[str]) -> None:
        """These are good for nothing from now on, and no others; see `Certificate.number`."""
        self._revoked_certificates = numbers
        concerned = self._renew([one for one in self.known if one.proof == CERTIFICATE])
        self._tell({one.tenant for one in concerned}, concerned)

    def end_tenant(self, tenant: TenantId) -> None:
        """A tenant is being removed: whoever came in to it has to go."""
        gone = [one for one in self.known if one.tenant == tenant]
        why = f"tenant {quoted(tenant)} was removed"
        self._tell({tenant}, {self.known.revoke(identity, why) for identity in gone})

    def _renew(self, identities: list[Identity]) -> set[Principal]:
        """They have the grants of now, or are revoked."""
        concerned = set()
        for identity in identities:
            principal = self.known.get(identity)
            if principal is None:
                continue  # revoked or forgotten meanwhile
            concerned.add(principal)
            refusal = self._refusal(identity)
            if refusal:
                self.known.revoke(identity, refusal)
            else:
                principal.grants = self._grants(identity)
        return concerned

    # Coming in

    def anonymous(self, source: str) -> Principal | None:
        """Who a client without a login is; None when it has to log in."""
        if not self.asks_login and is_loopback(source.partition("%")[0]):
            return self.get(_LOCAL_CLIENT)
        return self.get(_ANONYMOUS) if self._allow_anonymous else None

    def local(self) -> Principal:
        """Who a command is that came over the socket in the data directory: an operator."""
        return self.get(Identity(DEFAULT_TENANT, "", DIRECTORY))

    def principal(self, user: str, tenant: TenantId = DEFAULT_TENANT) -> Principal:
        """What somebody may who logs in as this user with all roles; '' for an anonymous client."""
        return self.with_login(tenant, user, Login())

    def certified(self, certificate: Certificate) -> Principal | None:
        """Who the owner of a certificate is that the listener's authority signed.

        Once users exist, it is one of them, unless the setting says otherwise.
        """
        rules = self.certificates
        named = rules.tenant_of(certificate)
        if named is not None and named not in self.tenants:
            return None
        tenant = TenantId(named or DEFAULT_TENANT)
        with suppress(InvalidName):
            name = check_user(rules.user_of(certificate))
            row = self.find(name) if named is None else self._users.get((tenant, name))
            if row is not None:
                tenant, name = row.tenant, row.user
            identity = Identity(tenant, name, CERTIFICATE, credential=certificate.number)
            return None if self._refusal(identity) else self.get(identity)
        return None

    def keyed(self, key: bytes) -> Principal | None:
        """Whose key this is; None if nobody's."""
        row = self._keys.find(key)
        if row is None:
            self.count_wrong()
            return None
        return self.get(Identity(row.tenant, row.user, KEY, row.roles, row.digest))

    def takes_token(self, secret: bytes) -> bool:
        """Whether this is to be checked as a token: it looks like one, and tokens are accepted."""
        return self.tokens is not None and looks_like_token(secret)

    def tokened(self, text: bytes) -> Admission:
        """What the bearer of a token may do; NotAuthorized if it is not accepted.

        It has the roles that the token names, never those of a user of the same name.
        """
        assert self.tokens is not None, "takes_token was asked before"
        try:
            token = self.tokens.check(text)
            user = check_user(token.user)
            if (tenant := token.tenant or DEFAULT_TENANT) not in self.tenants:
                raise NotAuthorized(f"the token's tenant {quoted(tenant)} does not exist")
        except InvalidName as wrong:
            self.count_wrong()
            raise NotAuthorized(f"the token is not accepted: {wrong}") from None
        except NotAuthorized:
            self.count_wrong()
            raise
        principal = self.get(Identity(TenantId(tenant), user, TOKEN, token.roles))
        return Admission(principal, token.client_id, token.expires_us)

    def find(self, login: str) -> CredentialRow | None:
        """The user that a login name means: `user` or `tenant/user`."""
        row = self._users.get((DEFAULT_TENANT, login))
        if row is None and "/" in login:
            tenant, _, user = login.partition("/")
            row = self._users.get((TenantId(tenant), user))
        return row

    def count_wrong(self) -> None:
        """A client was refused because what it showed lets nobody in."""
        self._metrics.refused["login"] += 1

    def count_stranger(self) -> None:
        """A client was refused because it did not log in."""
        self._metrics.refused["anonymous"] += 1

    def recall(self, user: str, password: bytes) -> Principal | None:
        """Who logs in, if this password was found right before. Costs microseconds."""
        row = self.find(user)
        if row is not None and self._passwords.recall(row.password_hash, password):
            return self.get(by_password(row))
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
        if principal is None or principal.is_revoked:
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
            row = self.find(user)
            stored = self._decoy if row is None else row.password_hash
            if await self._passwords.verify(stored, password) and row is not None:
                now = self.find(user)
                if now is not None and now.password_hash == stored:
                    return self.get(by_password(now))
                self._passwords.forget(stored)  # removed or changed meanwhile
            self.count_wrong()
            await asyncio.sleep(self._wrong_login_s)
            return None
