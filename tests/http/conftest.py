"""One broker for all tests of a file; each test has topics and client ids of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doors.hosted import Hosted
from tests.http.asking import Asking


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with Hosted(tmp_path_factory.mktemp("data")) as hosted:
        yield hosted


@pytest.fixture
def client(broker: Hosted) -> Iterator[Asking]:
    with Asking(broker.ports["http"]) as asking:
        yield asking


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A text that no other test uses: for a topic, a name, a client id."""
    return "".join(char if char.isalnum() else "-" for char in request.node.name)
