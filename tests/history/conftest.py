from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.world import TieringWorld


@pytest.fixture
def world(tmp_path: Path) -> TieringWorld:
    return TieringWorld(tmp_path)
