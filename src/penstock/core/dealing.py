"""Which node serves which parts of a share: decided from who has members and who has what now.

Invariant: every part gets exactly one of the nodes, no node gets two more than another, and a part
stays where it is unless its node has too many. All nodes decide the same from the same rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

NOBODY: Final = 0  # as an owner


def deal_parts(
    owners: Mapping[int, int], topics: Mapping[int, int], nodes: Collection[int]
) -> dict[int, int]:
    """Who is to serve each part, by its id; nobody if no node has a member.

    `owners` says who has each part now, `topics` which topic it belongs to: the parts of one topic
    are spread before those of several.
    """
    if not nodes:
        return {}
    hands = {inc: _Hand() for inc in sorted(nodes)}
    loose: list[int] = []
    for part in sorted(owners):
        hand = hands.get(owners[part])
        if hand is None:
            loose.append(part)
        else:
            hand.take(part, topics[part])
    quotas = _quotas(len(owners), hands)
    for inc, hand in hands.items():
        while hand.count > quotas[inc]:
            loose.append(hand.give_up())
    for part in sorted(loose):
        topic = topics[part]
        taker = min(
            [inc for inc, hand in hands.items() if hand.count < quotas[inc]],
            key=lambda inc: (len(hands[inc].parts.get(topic, ())), hands[inc].count, inc),
        )
        hands[taker].take(part, topic)
    return {
        part: inc for inc, hand in hands.items() for parts in hand.parts.values() for part in parts
    }


class _Hand:
    """The parts of one node, by their topics."""

    __slots__ = ("count", "parts")

    def __init__(self) -> None:
        self.count = 0
        self.parts: dict[int, list[int]] = {}

    def take(self, part: int, topic: int) -> None:
        self.parts.setdefault(topic, []).append(part)
        self.count += 1

    def give_up(self) -> int:
        """A part of the topic that it has the most of."""
        self.count -= 1
        return max(self.parts.values(), key=len).pop()


def _quotas(count: int, hands: Mapping[int, _Hand]) -> dict[int, int]:
    """How many parts each node gets; those that have the most now get one more if it is uneven."""
    least, uneven = divmod(count, len(hands))
    ranked = sorted(hands, key=lambda inc: (-hands[inc].count, inc))
    return {inc: least + (at < uneven) for at, inc in enumerate(ranked)}
