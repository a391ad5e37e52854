"""What a rule can allow or deny."""

from __future__ import annotations

from typing import Final

from penstock.core.naming.names import quoted
from penstock.model.errors import RefusedError

PUBLISH: Final = "publish"  # a message under a name, through any door
SUBSCRIBE: Final = "subscribe"  # to a filter, over MQTT
RECEIVE: Final = "receive"  # a message over MQTT: live, retained, replayed, shared
READ: Final = "read"  # a message in every other way
MANAGE: Final = "manage"  # topics, their settings, bindings and consumers

ACTIONS: Final = (PUBLISH, SUBSCRIBE, RECEIVE, READ, MANAGE)


def check_action(action: str) -> str:
    if action not in ACTIONS:
        raise RefusedError(
            f"action {quoted(action)} is unknown: the actions are {', '.join(ACTIONS)}"
        )
    return action
