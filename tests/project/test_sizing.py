"""The model of how many nodes a cluster needs: does it agree with a simulation, and with itself?"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.sizing import (
    NODES_MAX,
    TABLE,
    Costs,
    Limits,
    Load,
    interested,
    nodes_needed,
    rows,
    simulate,
    use_of,
)

LOADS = st.builds(
    Load,
    clients=st.floats(1, 1e9),
    rate=st.floats(1, 1e7),
    readers=st.floats(0, 1_000),
    message_bytes=st.floats(1, 1e6),
)


@pytest.mark.parametrize(("nodes", "readers"), [(1, 1), (3, 1), (3, 5), (16, 4), (40, 100)])
def test_the_model_agrees_with_messages_that_go_to_random_readers(nodes: int, readers: int) -> None:
    load = Load(clients=nodes * 1_000, rate=10_000, readers=readers)
    found = simulate(load, nodes, Costs(), messages=20_000, seed=4)
    assert mean(found) == pytest.approx(use_of(load, nodes, Costs()).cpu_share, rel=0.02)
    assert max(found) < 1.2 * mean(found), "random places are about even"


def test_one_reader_interests_one_node_and_many_readers_interest_all() -> None:
    assert interested(8, 1) == pytest.approx(1)
    assert interested(8, 1_000) == pytest.approx(8)
    assert interested(1, 5) == 1


@given(LOADS)
def test_the_number_of_nodes_is_enough_and_one_less_is_not(load: Load) -> None:
    costs, limits = Costs(), Limits()
    nodes = nodes_needed(load, costs, limits)
    if not nodes:
        assert use_of(load, NODES_MAX, costs).exceeded(limits)
        return
    assert not use_of(load, nodes, costs).exceeded(limits)
    assert nodes == 1 or use_of(load, nodes - 1, costs).exceeded(limits)


def test_no_number_of_nodes_is_enough_for_more_messages_than_one_node_can_follow() -> None:
    costs, limits = Costs(), Limits()
    too_many = limits.core_share * 1e6 / costs.follow_us * 1.01
    assert nodes_needed(Load(10, too_many, message_bytes=1), costs, limits) == 0


def test_the_page_about_nodes_has_the_table_of_the_model() -> None:
    page = (Path(__file__).parents[2] / "docs" / "SCALE.md").read_text()
    loads = [Load(clients, rate) for clients, rate in TABLE]
    for row in rows(loads, Costs(), Limits()):
        assert "| " + " | ".join(row) + " |" in page
