"""How long tests wait for what must come, and how they wait for what nobody tells them."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 60.0  # what has not come by then does not come, however busy the machine is


def wait_until(is_true: Callable[[], object]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.01)
