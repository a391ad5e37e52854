"""One broker for all tests of a file; each test has names and client ids of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doors.hosted import Hosted


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with Hosted(tmp_path_factory.mktemp("data")) as hosted:
        yield hosted


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test publishes under; also good as a client id."""
    return "".join(char if char.isalnum() else "-" for char in request.node.name)
