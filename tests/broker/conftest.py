"""A broker of either kind, in memory and in a directory; and an exchange without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock import Broker
from tests.broker.exchange_world import ExchangeWorld, opened_world


@pytest.fixture(params=["memory", "files"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    opened = Broker.memory() if request.param == "memory" else Broker(tmp_path / "data")
    with opened:
        yield opened


@pytest.fixture
async def world() -> AsyncIterator[ExchangeWorld]:
    async with opened_world() as opened:
        yield opened
