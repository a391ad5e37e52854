"""Does a test of many cases try each of them, and name those that failed?"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.each import each, every_failure


def test_every_case_is_tried_and_the_failure_names_those_that_failed() -> None:
    tried: list[tuple[int, str]] = []

    @each("number", range(4), ids=lambda number: f"case {number}")
    def check(world: str, number: int) -> None:
        tried.append((number, world))
        assert number % 2 == 0

    assert list(inspect.signature(check).parameters) == ["world"]
    with pytest.raises(ExceptionGroup, match="2 cases failed: case 1, case 3") as caught:
        check(world="w")
    assert tried == [(number, "w") for number in range(4)]
    assert [one.__notes__ for one in caught.value.exceptions] == [
        ["case: case 1"],
        ["case: case 3"],
    ]


def test_a_case_in_which_nothing_is_raised_fails() -> None:
    with pytest.raises(ExceptionGroup, match="1 cases failed: quiet"), every_failure() as tried:
        with tried("loud"), pytest.raises(ValueError):
            raise ValueError
        with tried("quiet"), pytest.raises(ValueError):
            pass


def test_a_test_without_cases_is_refused() -> None:
    with pytest.raises(AssertionError, match="without cases"):
        each("case", [])


def test_cases_without_a_failure_pass(tmp_path: Path) -> None:
    @each("number", [1, 2])
    def check(number: int, place: Path) -> None:
        (place / str(number)).touch()

    check(place=tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["1", "2"]
