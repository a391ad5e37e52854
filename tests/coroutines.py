"""Tests and fixtures may be coroutines: `async def test_…(world: StoreWorld) -> None`.

A test and its fixtures share one event loop, which ends after them. An asynchronous fixture is a
generator that yields once, and lives for one test. Under `@given` each example has an event loop of
its own. A file whose tests need another kind of loop defines a fixture `runner`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

import pytest


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of this test."""
    with asyncio.Runner() as opened:
        yield opened


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    given = getattr(pyfuncitem.obj, "hypothesis", None)
    if given is not None and inspect.iscoroutinefunction(given.inner_test):
        given.inner_test = _in_a_loop(given.inner_test)
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    loop: asyncio.Runner = pyfuncitem._request.getfixturevalue("runner")
    names = pyfuncitem._fixtureinfo.argnames
    loop.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> object:
    if not inspect.isasyncgenfunction(fixturedef.func):
        return None
    loop: asyncio.Runner = request.getfixturevalue("runner")
    given = {name: request.getfixturevalue(name) for name in fixturedef.argnames}
    steps: AsyncIterator[object] = fixturedef.func(**given)
    found = loop.run(_step(steps))
    fixturedef.addfinalizer(lambda: loop.run(_finish(steps)))
    fixturedef.cached_result = (found, fixturedef.cache_key(request), None)
    return found


def _in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run_example(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run_example


async def _step(steps: AsyncIterator[object]) -> object:
    return await anext(steps)


async def _finish(steps: AsyncIterator[object]) -> None:
    async for _ in steps:
        raise AssertionError("an asynchronous fixture yields once")
