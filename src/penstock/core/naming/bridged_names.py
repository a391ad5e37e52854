"""Which names a bridge carries, and what each is called on the other side.

A name here is `local_prefix` + x, and there `remote_prefix` + x, where x matches `filter`. The
first topic that matches a name decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.naming.names import matches

IN: Final = "in"
OUT: Final = "out"
BOTH: Final = "both"
DIRECTIONS: Final = (OUT, IN, BOTH)


@dataclass(frozen=True, slots=True)
class BridgeTopic:
    """One `[[bridges.topics]]`."""

    filter: str
    direction: str = OUT
    qos: int = 1
    local_prefix: str = ""
    remote_prefix: str = ""

    @property
    def is_out(self) -> bool:
        return self.direction != IN

    @property
    def is_in(self) -> bool:
        return self.direction != OUT

    @property
    def local_filter(self) -> str:
        return self.local_prefix + self.filter

    @property
    def remote_filter(self) -> str:
        return self.remote_prefix + self.filter


def remote_name(topics: Sequence[BridgeTopic], name: str) -> str:
    """What a name of ours is called there; '' if the bridge does not carry it."""
    for topic in topics:
        prefix = topic.local_prefix
        # `a/#` matches `a`, too, which is not below the prefix `a/`.
        if topic.is_out and name.startswith(prefix) and matches(topic.local_filter, name):
            return topic.remote_prefix + name[len(prefix) :]
    return ""


def local_name(topics: Sequence[BridgeTopic], name: str) -> str:
    """What a name of theirs is called here; '' if the bridge does not carry it."""
    for topic in topics:
        prefix = topic.remote_prefix
        if topic.is_in and name.startswith(prefix) and matches(topic.remote_filter, name):
            return topic.local_prefix + name[len(prefix) :]
    return ""
