"""Publishing in batches: what comes while a request is on its way goes with the next one.

One request for each topic at a time, so messages are stored in the order of the calls. A request
whose answer was lost is sent again with the same key, and is stored once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple
from uuid import uuid4

import msgspec

from penstock.client.transport import Transport
from penstock.client.wire import check, topic_path
from penstock.model.errors import PenstockError, RefusedError, UnavailableError
from penstock.model.limits import MIB

BATCH_RECORDS_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 4 * MIB
WINDOW_MAX: Final = 10_000  # messages of a topic that wait for their offsets; others wait
RETRY_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # between attempts; then the caller hears


class _Results(msgspec.Struct):
    first_offset: int


class _Message(NamedTuple):
    body: bytes
    stored: asyncio.Future[int]


class TopicPublisher:
    """The messages of one topic on their way."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self._transport = transport
        self._path = f"{topic_path(topic)}/records"
        self._waiting: deque[_Message] = deque()
        self._room = asyncio.Semaphore(WINDOW_MAX)
        self._task: asyncio.Task[None] | None = None

    async def publish(self, body: bytes) -> int:
        """The message's offset, once it is durable."""
        await self._room.acquire()
        try:
            stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._waiting.append(_Message(body, stored))
            if self._task is None:
                self._task = asyncio.create_task(self._send_all())
            return await stored
        finally:
            self._room.release()

    async def publish_together(self, bodies: list[bytes]) -> range:
        """Messages next to each other, stored together; their offsets."""
        first = await self._post(b"[" + b",".join(bodies) + b"]")
        return range(first, first + len(bodies))

    async def _send_all(self) -> None:
        await asyncio.sleep(0)  # all that this tick brings goes together
        while self._waiting:
            batch: list[_Message] = []
            size = 0
            while self._waiting and len(batch) < BATCH_RECORDS_MAX and size < BATCH_BYTES_MAX:
                batch.append(self._waiting.popleft())
                size += len(batch[-1].body)
            batch = [one for one in batch if not one.stored.cancelled()]
            if batch:
                await self._send(batch)
        self._task = None

    async def _send(self, batch: list[_Message]) -> None:
        try:
            first = await self._post(b"[" + b",".join([one.body for one in batch]) + b"]")
        except RefusedError as refused:
            if len(batch) == 1:
                _settle(batch[0].stored, refused)
                return
            for one in batch:  # one of them is wrong: the others need not suffer
                await self._send([one])
        except (PenstockError, asyncio.CancelledError) as failed:
            for one in batch:
                _settle(one.stored, failed)
            if isinstance(failed, asyncio.CancelledError):
                raise
        else:
            for offset, one in enumerate(batch, first):
                _settle(one.stored, offset)

    async def _post(self, body: bytes) -> int:
        headers = {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex}
        for wait_s in (*RETRY_S, None):
            try:
                answer = await self._transport.ask(
                    "POST", self._path, body, headers, may_repeat=True
                )
                return msgspec.json.decode(check(answer), type=_Results).first_offset
            except UnavailableError:
                if wait_s is None:
                    raise
                await asyncio.sleep(wait_s)
        raise AssertionError("unreachable")

    async def drain(self) -> None:
        """Until nothing waits."""
        if self._task is not None:
            await asyncio.wait([self._task])


def _settle(stored: asyncio.Future[int], result: int | BaseException) -> None:
    if stored.done():
        return
    if isinstance(result, BaseException):
        stored.set_exception(result)
    else:
        stored.set_result(result)
