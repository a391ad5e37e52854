"""asyncio's loop on a DoorSelector, which it tells of every call it is given meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple, Unpack

from penstock.doors.selector import DoorSelector

Arguments = TypeVarTuple("Arguments")


class DoorLoop(asyncio.SelectorEventLoop):
    """Every call and timer asked for while the selector serves sockets makes it come back."""

    def __init__(self, selector: DoorSelector) -> None:
        super().__init__(selector)
        self._come_back = selector.come_back
        # Shorter ways than asyncio's own, for what is done with every message.
        self.call_at_tick_end = selector.ending.append
        self.call_from_thread = selector.call_from_thread
        self.is_quiet = selector.is_quiet
        selector.on_mistake = self._tell

    def call_soon(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        self._come_back()
        return super().call_soon(callback, *args, context=context)

    def _tell(self, mistake: Exception) -> None:
        self.call_exception_handler({"message": "a call failed", "exception": mistake})

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._come_back()
        return super().call_at(when, callback, *args, context=context)
