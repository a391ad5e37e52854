"""A broker of either kind: in memory, and in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Broker


@pytest.fixture(params=["memory", "files"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    opened = Broker.memory() if request.param == "memory" else Broker(tmp_path / "data")
    with opened:
        yield opened
