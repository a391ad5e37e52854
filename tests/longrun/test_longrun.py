"""Do many clients get what they must, and nothing else, from a broker killed again and again?

`make nightly` asks for ten minutes, `python -m tests.longrun MINUTES [SEED]` for as long as told.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.test_mqtt_kill import EAGER
from tests.longrun.run import Failure, Run

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))


def test_random_traffic_with_kills_gives_everybody_what_the_model_says(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    run = Run(tmp_path / "data", SEED)
    run.begin()
    for _ in range(2):
        run.round(250)
    run.end()
    assert run.received > run.ledger.total > 100
    assert run.kills >= 2


def test_the_run_notices_an_ack_that_comes_before_the_commit(tmp_path: Path) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    with pytest.raises(Failure) as noticed:
        for attempt in range(10):
            run = Run(tmp_path / f"{attempt}", SEED + attempt, EAGER)
            run.begin()
            for _ in range(3):
                run.round(150)
    print(noticed.value)
