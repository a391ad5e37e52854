"""What a request needs before its handler sees it: every route declares it (Route.needs).

Names of single messages and records are judged where they are stored and read; what is checked
here is the way in.
"""

from __future__ import annotations

from collections.abc import Container
from enum import Enum

from penstock.core.access import (
    MANAGE,
    PUBLISH,
    READ,
    Principal,
    authorise,
    denial,
    may_read_some,
)
from penstock.core.naming.names import quoted, topic_key
from penstock.doors.http.wire.messages import Request
from penstock.model.errors import NotAuthorized, RefusedError


class Needs(Enum):
    LOGIN = "login"  # whoever was let in
    JUDGED = "judged"  # whoever was let in; the handler judges what the request names
    READ_TOPIC = "read"  # something in the topic of the path may be read
    MANAGE_TOPIC = "manage"  # the topic of the path
    ADMIN = "admin"  # of the tenant
    OPERATOR = "operator"  # of all tenants


def check_needs(needs: Needs, request: Request) -> None:
    """NotAuthorized says what the one who asks may not."""
    principal = request.principal
    if needs is Needs.ADMIN:
        check_admin(principal, request)
    elif needs is Needs.OPERATOR:
        check_operator(principal, request)
    elif needs is Needs.READ_TOPIC:
        check_read(principal, request.params["topic"])
    elif needs is Needs.MANAGE_TOPIC:
        check_manage(principal, request.params["topic"])


def check_operator(principal: Principal, request: Request) -> None:
    if not principal.is_operator:
        who = f"user {quoted(principal.user)}" if principal.user else "an anonymous client"
        raise NotAuthorized(
            f"{who} may not {request.method} {quoted(request.path)}: it needs the role operator"
        )


def check_admin(principal: Principal, request: Request) -> None:
    if not principal.grants.is_admin:
        who = f"user {quoted(principal.user)}" if principal.user else "an anonymous client"
        raise NotAuthorized(
            f"{who} may not {request.method} {quoted(request.path)}: it needs the role admin"
        )


def check_read(principal: Principal, topic: str) -> None:
    """Something in the topic may be read."""
    if not may_read_some(principal, topic_key(topic)):
        raise NotAuthorized(denial(principal, READ, topic))


def check_manage(principal: Principal, topic: str) -> None:
    if not may_manage(principal, topic):
        raise NotAuthorized(denial(principal, MANAGE, topic))


def check_bind(principal: Principal, filter: str, topic: str, places: Container[str]) -> None:
    """It manages the topic, and the names that are stored there from then on.

    `places` are the topics that may hold these names up to now.
    """
    check_manage(principal, topic)
    if not principal.grants.allows_all(principal, MANAGE, filter, places):
        who = f"user {quoted(principal.user)}" if principal.user else "an anonymous client"
        raise NotAuthorized(
            f"{who} may not bind {quoted(filter)}: it takes names from other topics, so it needs a "
            f"rule such as 'allow manage {filter}', and no rule that denies some of it"
        )


def check_owner(principal: Principal, owner: str | None, what: str) -> None:
    """Only its owner and admins move or remove it; what anonymous clients made is everybody's."""
    if owner and owner != principal.user and not principal.grants.is_admin:
        raise NotAuthorized(
            f"{what} belongs to another user: use one of your own, or ask an administrator"
        )


def publish_refusal(principal: Principal, topic: str, refused: RefusedError) -> RefusedError:
    """What a publisher is told: whoever may not see a topic does not learn whether it exists."""
    if may_see(principal, topic) or authorise(principal, PUBLISH, topic, topic_key(topic)):
        return refused
    return NotAuthorized(denial(principal, PUBLISH, topic))


def may_manage(principal: Principal, topic: str) -> bool:
    return authorise(principal, MANAGE, topic, topic_key(topic))


def may_see(principal: Principal, topic: str) -> bool:
    """Is the principal told that the topic exists?"""
    return may_read_some(principal, topic_key(topic)) or may_manage(principal, topic)
