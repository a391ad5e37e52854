"""One broker with the user alice for all tests of a file; each test closes what it opened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.access.readers import UsersWorld
from tests.doors.hosted import Hosted
from tests.doors.users import add_users


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UsersWorld]:
    data = tmp_path_factory.mktemp("data")
    add_users(data, alice="wonder")
    with Hosted(data) as broker:
        yield UsersWorld(broker)


@pytest.fixture
def world(shared: UsersWorld) -> Iterator[UsersWorld]:
    yield shared
    shared.close()
