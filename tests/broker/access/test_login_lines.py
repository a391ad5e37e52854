"""Does every network get its fair part of the places, and is each place given back?"""

from __future__ import annotations

import random

import pytest

from penstock.broker.access.login_lines import LOGINS_PER_SOURCE_MAX, LoginLines, Place
from penstock.model.errors import UnavailableError

PLACES_MAX = 40


def waits(place: Place) -> bool:
    return not place.turn.done()


def gave_way(place: Place) -> bool:
    return place.turn.done() and place.turn.exception() is not None


async def test_the_newest_of_the_longest_line_gives_way_to_another_network() -> None:
    lines = LoginLines(PLACES_MAX)
    crowd = [lines.join("crowd") for _ in range(PLACES_MAX)]
    with pytest.raises(UnavailableError):
        lines.join("crowd")
    newcomer = lines.join("other")
    assert not waits(newcomer)
    assert gave_way(crowd[-1]) and waits(crowd[-2]), "who waited longest keeps its place"
    assert len(lines) == PLACES_MAX


async def test_the_next_of_a_line_has_its_turn_when_one_leaves() -> None:
    lines = LoginLines(PLACES_MAX)
    places = [lines.join("one") for _ in range(LOGINS_PER_SOURCE_MAX + 2)]
    assert [waits(place) for place in places[-3:]] == [False, True, True]
    lines.leave(places[0])
    assert [waits(place) for place in places[-3:]] == [False, False, True]


@pytest.mark.parametrize("seed", range(20))
async def test_places_add_up_whatever_comes_and_goes(seed: int) -> None:
    """Compared with a naive list of who is there."""
    chance = random.Random(seed)
    lines = LoginLines(PLACES_MAX)
    inside: list[Place] = []
    for _ in range(2_000):
        if inside and chance.random() < 0.4:
            lines.leave(inside.pop(chance.randrange(len(inside))))
        else:
            network = chance.choice("aaaaaabcd")
            lengths = {name: sum(one.network == name for one in inside) for name in "abcd"}
            try:
                inside.append(lines.join(network))
            except UnavailableError:
                evictable = [n for n in "abcd" if lengths[n] > LOGINS_PER_SOURCE_MAX]
                assert all(lengths[n] <= lengths[network] + 1 for n in evictable)
            inside = [one for one in inside if not gave_way(one)]
        assert len(lines) == len(inside) <= PLACES_MAX
        for name in "abcd":
            turns = [not waits(one) for one in inside if one.network == name]
            assert sum(turns) == min(len(turns), LOGINS_PER_SOURCE_MAX)
    for place in inside:
        lines.leave(place)
    assert not lines._lines and len(lines) == 0
