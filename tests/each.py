"""One test for many cases that need no test of their own: a test costs more than most cases do.

Every case is tried, also after one that failed; the failure names each case that failed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


@contextmanager
def every_failure() -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """Goes on after a failure of what is `tried`; at the end raises all of them, with names."""
    failures: list[Exception] = []
    names: list[str] = []

    @contextmanager
    def tried(name: str) -> Iterator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"case: {name}")
            failures.append(error if isinstance(error, Exception) else AssertionError(str(error)))
            names.append(name[:100])

    yield tried
    if failures:
        raise ExceptionGroup(f"{len(failures)} cases failed: {', '.join(names)}", failures)


def each(
    argument: str, cases: Iterable[T], ids: Callable[[T], str] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, but all cases are one test, which has its fixtures once."""
    named = [(ids(case), case) for case in cases]
    assert named, "a test without cases proves nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name != argument]
        assert len(others) < len(signature.parameters), f"{test.__name__} has no {argument!r}"

        @wraps(test)
        def try_each(**fixtures: Any) -> None:
            with every_failure() as tried:
                for name, case in named:
                    with tried(name):
                        test(**fixtures, **{argument: case})

        try_each.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return try_each

    return decorate
