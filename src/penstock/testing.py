"""A pytest fixture for programs that use Penstock; found by pytest once Penstock is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.app.sync import Broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker in memory, closed after the test."""
    with Broker.memory() as opened:
        yield opened
