"""One broker with the user alice for all tests of a file; each test closes what it opened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.access.readers import World
from tests.doors.hosted import Hosted
from tests.doors.users import add_users


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    data = tmp_path_factory.mktemp("data")
    add_users(data, alice="wonder")
    with Hosted(data) as broker:
        yield World(broker)


@pytest.fixture
def world(shared: World) -> Iterator[World]:
    yield shared
    shared.close()
