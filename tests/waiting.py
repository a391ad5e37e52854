"""Waiting for something that a test cannot be told of: it is looked at until it holds."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 20.0


def wait_until(is_true: Callable[[], object]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.01)
