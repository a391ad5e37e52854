"""Publishing in batches: what comes while a request is on its way goes with the next one.

One request for each topic at a time, so messages are stored in the order of the calls. A request
whose answer was lost is sent again with the same key, and is stored once. A caller whose message
went with others, and who is told that the outcome is unknown, gets a key that names the request and
the message's place in it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import uuid4

import msgspec

from penstock.client.answer import check
from penstock.client.repeating import ask_again, keyed
from penstock.client.transport import Transport
from penstock.client.wire import topic_path
from penstock.model.errors import OutcomeUnknown, PenstockError, RefusedError
from penstock.model.limits import MIB
from penstock.model.messages import check_key
from penstock.model.record import Place

BATCH_RECORDS_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 4 * MIB
WINDOW_MAX: Final = 10_000  # messages of a topic that wait for their offsets; others wait
_PART: Final = re.compile(r"([0-9a-f]{32})\.([0-9]+)\.([0-9a-f]{16})")  # request, place, digest


class _Stored(msgspec.Struct):
    offset: int
    partition: int = 0


class _Results(msgspec.Struct):
    first_offset: int | dict[str, int]
    results: msgspec.Raw

    def places(self, count: int) -> range | list[tuple[int, int]]:
        if not isinstance(self.first_offset, dict):
            return range(self.first_offset, self.first_offset + count)
        stored = msgspec.json.decode(self.results, type=list[_Stored])
        return [(one.partition, one.offset) for one in stored]


class _Message(NamedTuple):
    body: bytes
    stored: asyncio.Future[Place]
    key: str  # of the caller; such a message is sent alone


class TopicPublisher:
    """The messages of one topic on their way."""

    def __init__(self, transport: Transport, topic: str, patience_s: float) -> None:
        self._transport = transport
        self._patience_s = patience_s
        self._path = f"{topic_path(topic)}/records"
        self._waiting: deque[_Message] = deque()
        self._room = asyncio.Semaphore(WINDOW_MAX)
        self._task: asyncio.Task[None] | None = None

    async def publish(self, body: bytes, key: str | None) -> Place:
        """The message's offset, once it is durable."""
        if key is not None:
            _check_part(check_key(key), body)
        await self._room.acquire()
        try:
            stored: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
            self._waiting.append(_Message(body, stored, key or ""))
            if self._task is None:
                self._task = asyncio.create_task(self._send_all())
            return await stored
        finally:
            self._room.release()

    async def publish_together(
        self, bodies: list[bytes], key: str | None
    ) -> range | list[tuple[int, int]]:
        """Messages next to each other, stored together; their offsets."""
        key = uuid4().hex if key is None else check_key(key)
        try:
            return await self._post(bodies, key)
        except OutcomeUnknown as lost:
            raise keyed(lost, key) from lost

    async def _send_all(self) -> None:
        await asyncio.sleep(0)  # all that this tick brings goes together
        while self._waiting:
            batch = [one for one in self._take() if not one.stored.cancelled()]
            if batch:
                await self._send(batch)
        self._task = None

    def _take(self) -> list[_Message]:
        """What goes with the next request."""
        batch = [self._waiting.popleft()]
        size = len(batch[0].body)
        while self._waiting and len(batch) < BATCH_RECORDS_MAX and size < BATCH_BYTES_MAX:
            if batch[-1].key or self._waiting[0].key:
                break
            batch.append(self._waiting.popleft())
            size += len(batch[-1].body)
        return batch

    async def _send(self, batch: list[_Message]) -> None:
        key = batch[0].key or uuid4().hex
        try:
            places = await self._post([one.body for one in batch], key)
        except RefusedError as refused:
            if len(batch) == 1:
                _settle(batch[0].stored, refused)
                return
            for one in batch:  # one of them is wrong: the others need not suffer
                await self._send([one])
        except OutcomeUnknown as lost:
            for at, one in enumerate(batch):
                its_key = key if len(batch) == 1 else _part_of(key, at, one.body)
                _settle(one.stored, keyed(lost, its_key))
        except (PenstockError, asyncio.CancelledError) as failed:
            for one in batch:
                _settle(one.stored, failed)
            if isinstance(failed, asyncio.CancelledError):
                raise
        else:
            stored: Sequence[Place] = places
            for place, one in zip(stored, batch, strict=True):
                _settle(one.stored, place)

    async def _post(self, bodies: list[bytes], key: str) -> range | list[tuple[int, int]]:
        body = b"[" + b",".join(bodies) + b"]"
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        if len(bodies) == 1 and (part := _PART.fullmatch(key)):
            headers |= {"Idempotency-Key": part[1], "Idempotency-Part": part[2]}

        async def ask() -> range | list[tuple[int, int]]:
            answer = await self._transport.ask("POST", self._path, body, headers, may_repeat=True)
            return msgspec.json.decode(check(answer), type=_Results).places(len(bodies))

        return await ask_again(ask, self._patience_s, waits_for_broker=True)

    async def drain(self) -> None:
        """Until nothing waits."""
        if self._task is not None:
            await asyncio.wait([self._task])


def _part_of(key: str, at: int, body: bytes) -> str:
    """A key for one message of a request with several."""
    return f"{key}.{at}.{_digest(body)}"


def _check_part(key: str, body: bytes) -> None:
    """RefusedError when a key of ours belongs to another message; the broker cannot know that."""
    part = _PART.fullmatch(key)
    if part and part[3] != _digest(body):
        raise RefusedError(
            f"key {key!r} belongs to another message: repeat the call that failed unchanged, or "
            "use a new key"
        )


def _digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=8).hexdigest()


def _settle(stored: asyncio.Future[Place], result: Place | BaseException) -> None:
    if stored.done():
        return
    if isinstance(result, BaseException):
        stored.set_exception(result)
    else:
        stored.set_result(result)
