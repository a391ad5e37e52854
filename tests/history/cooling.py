"""Moving all records of a topic into its history."""

from __future__ import annotations

from typing import Final

from penstock.app.server import Server

FUTURE_US: Final = 1 << 60  # every record is older


async def cool(server: Server, topic: str) -> None:
    """Everything that is stored goes into the history, and the log drops it."""
    log = server.broker.engine.topics.get(topic).log
    end = log.bounds().end
    await log.trim(FUTURE_US, None)  # closes the active segment: nothing may go yet
    await log.seal_closed()
    await log.tier(FUTURE_US, None)
    await log.trim(FUTURE_US, None)
    assert log.hot_first >= end, "everything is cold"
    assert log.bounds().first == 0
