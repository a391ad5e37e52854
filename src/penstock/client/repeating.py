"""Calls that may be repeated: the broker knows them by their key and carries them out once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import chain, repeat
from typing import Final, TypeVar

from penstock.model.errors import OutcomeUnknown, UnavailableError

RETRY_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # between attempts; the last one repeats
PATIENCE_S: Final = sum(RETRY_S)  # of waiting between attempts; then the caller is told

T = TypeVar("T")


async def ask_again(
    ask: Callable[[], Awaitable[T]], patience_s: float, *, waits_for_broker: bool
) -> T:
    """The answer of `ask`, repeated while answers are lost or the broker is away.

    Once an answer was lost the outcome is unknown until there is one, whatever fails afterwards.
    """
    lost: OutcomeUnknown | None = None
    waited_s = 0.0
    for pause_s in chain(RETRY_S, repeat(RETRY_S[-1])):
        try:
            return await ask()
        except OutcomeUnknown as unknown:
            lost = unknown
        except UnavailableError:
            if lost is None and (not waits_for_broker or waited_s + pause_s > patience_s):
                raise
        if waited_s + pause_s > patience_s:
            break
        await asyncio.sleep(pause_s)
        waited_s += pause_s
    assert lost is not None
    raise lost


def keyed(lost: OutcomeUnknown, key: str) -> OutcomeUnknown:
    """The same, with what is needed to repeat the call."""
    return OutcomeUnknown(f"{lost}: repeat the call with key={key!r}", key)
