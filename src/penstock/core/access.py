"""Who somebody is, and what that lets them do.

A Principal is one per (tenant, user) and compared by identity, so it is a cheap part of a route's
key; `Principals` hands them out. `authorise` is the only place that decides; whoever remembers an
answer remembers it by principal and name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.core.names import quoted
from penstock.model.errors import InvalidName
from penstock.model.limits import USER_CHARS_MAX
from penstock.model.record import DEFAULT_TENANT, TenantId

PUBLISH: Final = "publish"  # a message under a name
SUBSCRIBE: Final = "subscribe"  # to a filter
RECEIVE: Final = "receive"  # a message, live, retained, replayed or a will, under a name

_OWN: Final = "$SYS"  # names for what the broker says about itself


class Principal:
    """A user of a tenant, or its anonymous clients: those have the empty user name."""

    __slots__ = ("tenant", "user")

    def __init__(self, tenant: TenantId, user: str) -> None:
        self.tenant = tenant
        self.user = user

    @property
    def is_anonymous(self) -> bool:
        return not self.user

    def __repr__(self) -> str:
        return f"Principal({self.tenant!r}, {self.user or 'anonymous'!r})"


BROKER: Final = Principal(DEFAULT_TENANT, "")  # delivers what was let in before; asks nobody

NOBODY: Final = Principal(DEFAULT_TENANT, "")  # has not been let in, and may nothing

Authorise = Callable[[Principal, str, str], bool]


def authorise(principal: Principal, action: str, name: str) -> bool:
    """May the principal do this? `name` is a name, or the filter of a subscription.

    Whoever was let in may do everything, except speak in the broker's own name (MQTT 5 §4.7.2).
    """
    if principal is BROKER:
        return True
    if principal is NOBODY:
        return False
    return action != PUBLISH or not (name == _OWN or name.startswith(_OWN + "/"))


class Principals:
    """One object for each principal, made when it is first seen."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[TenantId, str], Principal] = {}

    def get(self, user: str, tenant: TenantId = DEFAULT_TENANT) -> Principal:
        """The principal of a user who exists; '' for anonymous clients."""
        key = (tenant, user)
        principal = self._known.get(key)
        if principal is None:
            principal = self._known[key] = Principal(tenant, user)
        return principal


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
