"""Does a newcomer get in, and who has to go for it? Compared with a naive list."""

from __future__ import annotations

import random

import pytest

from penstock.doors.strangers import GRACE_S, Stranger, Strangers


class Model:
    """Strangers in a list, the oldest first."""

    def __init__(self, count_max: int, per_network_max: int) -> None:
        self.now_s = 0.0
        self.closed: list[Stranger] = []
        self.inside: list[Stranger] = []
        self.evicted: list[str] = []
        self.strangers = Strangers(
            lambda: self.now_s, count_max, per_network_max, on_evict=self.evicted.append
        )

    def come(self, source: str, room: int = 1_000) -> bool:
        if not self.strangers.has_room(source, room):
            return False
        self.inside = [one for one in self.inside if one not in self.closed]
        one = self.strangers.enter(source, lambda: None)
        one.close = lambda: self.closed.append(one)
        self.inside.append(one)
        return True

    def count(self, source: str) -> int:
        return sum(one.network == source for one in self.inside)


def test_the_oldest_of_the_greediest_network_gives_way_to_another_one() -> None:
    model = Model(10, 8)
    assert all(model.come("crowd") for _ in range(8)) and model.come("few") and model.come("few")
    assert model.come("other")
    assert [one.network for one in model.closed] == model.evicted == ["crowd"]
    assert model.closed[0] not in model.inside and len(model.strangers) == 10


def test_a_network_at_its_bound_waits_until_its_oldest_had_time_to_log_in() -> None:
    model = Model(10, 4)
    assert all(model.come("crowd") for _ in range(4))
    assert not model.come("crowd")
    model.now_s += GRACE_S
    oldest = model.inside[0]
    assert model.come("crowd") and model.closed == [oldest]


def test_nobody_comes_when_known_clients_leave_no_room() -> None:
    model = Model(10, 4)
    assert not model.come("one", room=0)
    assert model.come("one", room=1)
    assert model.come("two", room=1), "the other one goes"


@pytest.mark.parametrize("seed", range(20))
def test_counts_add_up_and_bounds_hold_whatever_comes_and_goes(seed: int) -> None:
    chance = random.Random(seed)
    model = Model(30, 12)
    for _ in range(3_000):
        step = chance.random()
        model.now_s += chance.random() / 10
        if step < 0.4 and model.inside:
            model.inside.pop(chance.randrange(len(model.inside))).leave()
        elif step < 0.45:
            counts = {name: model.count(name) for name in "abcdef"}
            assert model.strangers.evict() is bool(model.inside)
            if model.inside:
                gone = model.closed[-1]
                assert counts[gone.network] == max(counts.values())
                assert next(o for o in model.inside if o.network == gone.network) is gone
                model.inside.remove(gone)
        else:
            source, room = chance.choice("aaaaabcdef"), chance.choice([30, 30, 20])
            counts = {name: model.count(name) for name in "abcdef"}
            before = len(model.closed)
            came = model.come(source, room)
            full = len(model.inside) - came >= room
            if not came:
                assert counts[source] in (12, max(counts.values()))
            elif len(model.closed) > before:
                gone = model.closed[-1]
                assert counts[gone.network] == max(counts.values())
                assert full or counts[source] == 12 or sum(counts.values()) >= min(room, 30)
        for name in "abcdef":
            assert model.count(name) <= 12
        assert len(model.strangers) == len(model.inside) <= 30
