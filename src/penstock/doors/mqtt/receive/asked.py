"""What a SUBSCRIBE asks for besides its filters: history and a filter expression.

MQTT 5 clients say it by user properties: `from` is a position, `where` an expression. Other user
properties mean nothing to the broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.core.position import LATEST, Position, parse_position
from penstock.core.where import Where, compile_where
from penstock.model.errors import RefusedError
from penstock.mqtt.properties import Properties

FROM: Final = "from"
WHERE: Final = "where"


@dataclass(frozen=True, slots=True)
class Asked:
    """Where a feed begins, and what passes."""

    position: Position
    where: Where | None


def read_asked(properties: Properties, now_us: int) -> Asked | None:
    """None if a plain subscription is wanted; RefusedError says what is wrong."""
    given: dict[str, str] = {}
    for key, value in properties.user_properties:
        if key in (FROM, WHERE):
            if key in given:
                raise RefusedError(f"user property {key!r} is given twice: give it once")
            given[key] = value
    if not given:
        return None
    position = LATEST if FROM not in given else parse_position(given[FROM], now_us)
    where = None if WHERE not in given else compile_where(given[WHERE])
    return Asked(position, where)
