"""Principals, and the decision about them.

A Principal is one shared object for each credential of a user and compared by identity, so it is a
cheap part of a route's key. Its grants are replaced when roles or rules change. Where rules mention
`%c`, a connection has a principal of its own, which follows the grants of the shared one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.core.access.actions import PUBLISH, READ, RECEIVE, SUBSCRIBE
from penstock.core.access.grants import FULL, NOTHING, Decision, Grants
from penstock.core.naming.names import DEAD_SUFFIX, quoted
from penstock.model.errors import InvalidName, RefusedError
from penstock.model.limits import USER_CHARS_MAX
from penstock.model.record import DEFAULT_TENANT, TenantId

_OWN: Final = ("$SYS", "$audit")  # names in which only the broker itself speaks (MQTT 5 §4.7.2)


class Principal:
    """A user of a tenant, or its anonymous clients: those have the empty user name."""

    __slots__ = ("_grants", "_revoked", "base", "client_id", "tenant", "user")

    def __init__(self, tenant: TenantId, user: str, grants: Grants = NOTHING) -> None:
        self.tenant = tenant
        self.user = user
        self.client_id = ""
        self.base = self  # whose grants these are
        self._grants = grants
        self._revoked = ""

    @property
    def grants(self) -> Grants:
        return self.base._grants

    @grants.setter
    def grants(self, grants: Grants) -> None:
        self.base._grants = grants

    @property
    def is_revoked(self) -> bool:
        """Whether what it came in with is no longer good."""
        return bool(self.base._revoked)

    @property
    def revocation(self) -> str:
        """Why it is revoked; '' if it is not."""
        return self.base._revoked

    def revoke(self, why: str) -> None:
        """It may do nothing from now on, for ever; the doors end what it began."""
        self.base._revoked = why
        self.base._grants = NOTHING

    @property
    def is_anonymous(self) -> bool:
        return not self.user

    @property
    def is_operator(self) -> bool:
        """Whether it may manage all tenants."""
        return self.grants.is_operator

    @property
    def owner(self) -> str | None:
        """The user whose quotas count what it makes; None for the broker and its own directory."""
        return None if self.is_anonymous and self.is_operator else self.user

    def is_same_user(self, other: Principal) -> bool:
        """Whether both are the same user, however each of them logged in."""
        return self.user == other.user and self.tenant == other.tenant

    def for_client(self, client_id: str) -> Principal:
        """The principal of a connection with this client id: this one, unless rules mention it."""
        if self.client_id == client_id or not self.grants.mentions_client:
            return self
        own = Principal(self.tenant, self.user)
        own.client_id = client_id
        own.base = self.base
        return own

    def __repr__(self) -> str:
        return f"Principal({self.tenant!r}, {self.user or 'anonymous'!r})"


BROKER: Final = Principal(DEFAULT_TENANT, "", FULL)  # delivers what was let in; asks nobody

NOBODY: Final = Principal(DEFAULT_TENANT, "", NOTHING)  # has not been let in, and may do nothing

Authorise = Callable[[Principal, str, str, str], bool]


def authorise(principal: Principal, action: str, name: str, topic: str) -> bool:
    """May the principal do this?

    `name` is a name, or the filter of a subscription; `topic` is the key of the topic that holds
    it, '' if no single topic does.
    """
    if principal is BROKER:
        return True
    grants = principal.grants
    if grants.is_unlimited:
        return action != PUBLISH or not _is_own(name)
    if action == PUBLISH and _is_own(name):
        return False
    if not grants.allows(principal, action, name, topic):
        return False
    return not topic.endswith(DEAD_SUFFIX) or not _denies_original(principal, action, name, topic)


def decide(principal: Principal, action: str, name: str, topic: str) -> Decision:
    """As `authorise`, with the rule that decided."""
    if action == PUBLISH and _is_own(name):
        return Decision(False, None, "")
    found = principal.grants.decide(principal, action, name, topic)
    while found.is_allowed and topic.endswith(DEAD_SUFFIX) and action in (READ, RECEIVE):
        name, topic = _original(name, topic)
        original = principal.grants.decide(principal, action, name, topic)
        if original.rule is not None and not original.is_allowed:
            return original
    return found


def _denies_original(principal: Principal, action: str, name: str, topic: str) -> bool:
    """Whether the record that a dead letter was may not be read: then the letter may not either."""
    if action not in (READ, RECEIVE):
        return False
    while topic.endswith(DEAD_SUFFIX):  # the record may have been a dead letter, too
        name, topic = _original(name, topic)
        if principal.grants.denies(principal, action, name, topic):
            return True
    return False


def _original(name: str, topic: str) -> tuple[str, str]:
    """The name that a dead letter had, and its topic."""
    _, separator, original = name.partition(f"{DEAD_SUFFIX}/")
    return original if separator else name, topic.removesuffix(DEAD_SUFFIX)


def may_read_some(principal: Principal, topic: str) -> bool:
    """May the principal ask for records of a topic? Each record is judged by its name."""
    if topic.startswith("$"):  # of the broker itself: its records have its name
        return authorise(principal, READ, topic, topic)
    return principal.grants.may_read_some(topic)


def denial(principal: Principal, action: str, name: str) -> str:
    """What somebody is told who may not."""
    who = f"user {quoted(principal.user)}" if principal.user else "an anonymous client"
    doing = f"{action} to" if action in (PUBLISH, SUBSCRIBE) else action
    return (
        f"{who} may not {doing} {quoted(name)}: ask an administrator for a role or rule that "
        "allows it"
    )


def _is_own(name: str) -> bool:
    return name.startswith("$") and name.partition("/")[0] in _OWN


def check_user(user: str) -> str:
    """A text that may name a user, case-sensitive; else InvalidName."""
    if not isinstance(user, str) or not 1 <= len(user) <= USER_CHARS_MAX:
        raise InvalidName(
            f"user name {quoted(user)} is not a text of 1 to {USER_CHARS_MAX} letters"
        )
    if not user.isprintable() or user != user.strip():
        raise InvalidName(
            f"user name {quoted(user)} has control characters or spaces around it: leave them out"
        )
    if ":" in user:
        raise InvalidName(
            f"user name {quoted(user)} contains ':': it separates user and password in HTTP; "
            "choose another character"
        )
    return user


def check_new_user(user: str) -> str:
    """As `check_user`, for users who are added now: '/' separates tenant and user in a login."""
    if "/" in check_user(user):
        raise InvalidName(
            f"user name {quoted(user)} contains '/': it separates tenant and user in a login name; "
            "choose another character"
        )
    return user


def no_such_user(user: str) -> RefusedError:
    """What somebody is told who names a user that does not exist."""
    tenant, separator, name = user.partition("/")
    if separator:
        return RefusedError(
            f"there is no user {quoted(user)}: give the name without its tenant, {quoted(name)}, "
            f"and the tenant as --tenant {tenant}"
        )
    return RefusedError(
        f"there is no user {quoted(user)} (names are case-sensitive): see `penstock user list`"
    )
