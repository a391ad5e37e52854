"""Functions that are called with records, and requests that they answer.

A request is a record with the header `reply-to`. What a handler returns is published under that
name. If it raises, its error is published there, with a header that says so, and raised where the
request was made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol
from uuid import uuid4

import msgspec

from penstock.model.errors import (
    HandlerError,
    InvalidFilter,
    PenstockError,
    RefusedError,
    UnavailableError,
)
from penstock.model.record import HeadersLike, Offsets, Place, PositionLike, Record

REPLY_HEADER: Final = "reply-to"
CORRELATION_HEADER: Final = "correlation-id"
ERROR_HEADER: Final = "penstock.error"  # of a reply: the class of what the handler raised
ERROR_CHARS_MAX: Final = 2_000

Handler = Callable[[Any], Any]


class Talks(Protocol):
    """What handlers and requests need of a client."""

    async def publish(
        self, message: Any, topic: str, *, name: str | None = ..., headers: HeadersLike = ...
    ) -> Place: ...

    def stream(
        self, topic: str, *, start: PositionLike = ..., names: str | None = ...
    ) -> AsyncIterator[Record]: ...


class Handlers:
    """The handlers of a client."""

    def __init__(self, client: Talks) -> None:
        self._client = client
        self._handlers: list[tuple[str, str, Handler, Any]] = []

    def add(self, names: str, model: Any, topic: str) -> Callable[[Handler], Handler]:
        found = topic or names.partition("/")[0]
        if found in ("+", "#"):
            raise InvalidFilter(
                f"filter {names!r} begins with {found!r}, which is not a topic: name the topic "
                "that the handler reads with topic="
            )

        def register(function: Handler) -> Handler:
            self._handlers.append((found, names, function, model))
            return function

        return register

    async def run(self, start: PositionLike) -> None:
        """Until it is cancelled."""
        if not self._handlers:
            raise RefusedError("there is nothing to run: decorate a function with client.handler")
        works = [self._handle(*one, start=start) for one in self._handlers]
        await asyncio.gather(*works)

    async def _handle(
        self, topic: str, names: str, function: Handler, model: Any, start: PositionLike
    ) -> None:
        async for record in self._client.stream(topic, start=start, names=names):
            try:
                given = record if model is None else msgspec.json.decode(record.payload, type=model)
                result = function(given)
                if isinstance(result, Coroutine):
                    result = await result
            except Exception as mistake:
                context = {"message": f"a handler of {names!r} failed", "exception": mistake}
                asyncio.get_running_loop().call_exception_handler(context)
                kind, text = type(mistake).__name__, str(mistake)[:ERROR_CHARS_MAX]
                await self._reply(record, text, {ERROR_HEADER: kind})
                continue
            if result is not None:
                await self._reply(record, result, {})

    async def _reply(self, record: Record, result: Any, more: dict[str, str]) -> None:
        headers = dict(record.headers)
        reply_to = headers.get(REPLY_HEADER)
        if reply_to is None:
            return
        more = {CORRELATION_HEADER: headers.get(CORRELATION_HEADER, "")} | more
        with suppress(PenstockError):  # the requester gave up, or asks again
            await self._client.publish(result, record.topic, name=reply_to, headers=more)


async def request(
    client: Talks, message: Any, topic: str, name: str | None, end: Offsets, timeout_s: float
) -> Record:
    """Publish, and wait for the record that answers, which is not before `end`."""
    correlation = uuid4().hex
    reply_to = f"{topic}/_reply/{correlation}"
    headers = {REPLY_HEADER: reply_to, CORRELATION_HEADER: correlation}
    await client.publish(message, topic, name=name, headers=headers)
    try:
        async with asyncio.timeout(timeout_s):
            async for record in client.stream(topic, start=end, names=reply_to):
                return _checked(record)
    except TimeoutError:
        raise UnavailableError(f"no reply within {timeout_s:g} s") from None
    raise AssertionError("a stream does not end")


def _checked(reply: Record) -> Record:
    kind = dict(reply.headers).get(ERROR_HEADER)
    if kind is not None:
        raise HandlerError(f"the handler failed with {kind}: {reply.value}", kind)
    return reply
