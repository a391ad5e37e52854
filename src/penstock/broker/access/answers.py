"""May somebody do something, and which rule says so: what `penstock access check` asks."""

from __future__ import annotations

from typing import NamedTuple

from penstock.broker.access.access import Access
from penstock.core.access import MANAGE, SUBSCRIBE, Decision, check_action, decide
from penstock.core.naming.names import check_name, check_topic, split_share, topic_key
from penstock.core.naming.placement import Placement
from penstock.model.record import TenantId


class Question(NamedTuple):
    """`name` is a filter if the action is subscribe, and a topic if it is manage."""

    user: str  # '' for an anonymous client
    action: str
    name: str
    topic: str = ""  # '' for the one that holds the name
    client_id: str = ""  # what %c stands for


def answer(access: Access, placement: Placement, tenant: TenantId, question: Question) -> Decision:
    """What would be decided now; RefusedError if the user does not exist or a text is invalid."""
    user, action, name, topic, client_id = question
    if check_action(action) == SUBSCRIBE:
        _, name = split_share(name)  # a share needs what its filter needs
    else:
        check_name(name)
    key = topic_key(check_topic(topic)) if topic else _topic_of(placement, action, name)
    if user:
        access.user(user, tenant)
    principal = access.principal(user, tenant).for_client(client_id)
    return decide(principal, action, name, key)


def _topic_of(placement: Placement, action: str, name: str) -> str:
    if action == MANAGE:
        return topic_key(name)
    if action != SUBSCRIBE:
        return placement.place(name)
    places = placement.places(name)
    return places.pop() if len(places) == 1 else ""
