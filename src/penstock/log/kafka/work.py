"""What all logs in Kafka share: batches on their way to leaders, and following what comes in.

Sending: one request per leader at a time carries the batches of all logs that have one. A batch is
numbered when it is made and repeated unchanged until Kafka answers, so it is stored once, whatever
happens to connections and leaders. While Kafka does not answer, what is not on its way is refused.

Following: one waiting fetch per leader asks for the logs that do not write at the moment. Records
of others that come before our own are found by the log itself, from the offset of its own batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Final, Protocol

from penstock.log.kafka.ahead import AheadChunks
from penstock.log.kafka.client import (
    BACKOFF_S,
    FOLLOWING,
    OFFSET_OUT_OF_RANGE,
    OUT_OF_ORDER_SEQUENCE,
    TROUBLES,
    AnsweredError,
    Fetched,
    KafkaClient,
    Stored,
    is_passing,
    refusal,
)
from penstock.log.kafka.records.record_batch import SEQUENCE_MASK
from penstock.log.kafka.requests import Partition
from penstock.model.errors import InDoubt, PenstockError, UnavailableError
from penstock.model.limits import MIB

REQUEST_BYTES_MAX: Final = 48 * MIB  # Kafka takes 100 MiB at most (socket.request.max.bytes)
TROUBLE_S: Final = 5.0  # so long publishers wait for an answer of Kafka before they are refused
FOLLOW_WAIT_MS: Final = 500  # how long a fetch waits for records of others
BUSY_WAIT_MS: Final = 20  # the same while a log writes, which is asked for again afterwards


class KafkaJob:
    """One batch on its way into one partition."""

    def __init__(self, partition: Partition, data: bytes) -> None:
        self.partition = partition
        self.data = data
        self.base_offset = -1  # once it is stored
        self.error: PenstockError | None = None
        self.is_lost = False  # Kafka no longer has what was stored before it
        self.sent_count = 0

    @property
    def is_quick(self) -> bool:
        return False

    @property
    def is_short(self) -> bool:
        return False

    def run(self) -> None:
        raise AssertionError("a job of Kafka is sent")


class Follower(Protocol):
    """A log as this module sees it; called on the event loop."""

    @property
    def partition(self) -> Partition: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def is_writing(self) -> bool:
        """It writes now, or did a moment ago: its own batches tell it of records of others."""
        ...

    def take(self, fetched: Fetched) -> None:
        """Records from `next_offset` on, as it was when they were asked for."""
        ...

    async def look_at_bounds(self) -> None:
        """Kafka does not have the offset that was asked for."""
        ...

    @property
    def fence(self) -> str: ...

    def refuse_waiting(self, error: Exception) -> None: ...


class KafkaWork:
    """Made by `start`; used on the event loop that started it."""

    def __init__(
        self,
        client: KafkaClient,
        producer: tuple[int, int],
        giving_up: threading.Event,
        incarnation: int = 0,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.client = client
        self.producer = producer
        self.incarnation = incarnation  # of this node; 0 for a broker alone
        self.on_dead: list[Callable[[], None]] = []  # told once if others declare this node dead
        self._giving_up = giving_up  # set: who closes has waited long enough for Kafka
        self.read_ahead: set[AheadChunks] = set()  # the logs that are, at the moment
        self._sequences: dict[Partition, int] = {}  # of the next record that we write
        self.is_in_doubt = False  # something was given up that may be stored
        self.trouble = ""  # why appends are refused while Kafka does not answer
        self._loop = loop
        self._followers: dict[Partition, Follower] = {}
        self._waiting: list[tuple[KafkaJob, Callable[[], None]]] = []
        self._busy_nodes: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: dict[int, asyncio.Task[None]] = {}  # by leader
        self._is_closed = False
        self._dropped: set[Partition] = set()  # of topics that another node deleted
        self._is_scheduled = False
        self._is_refreshing = False
        self._answered_s = loop.time()  # when Kafka last stored something, or had nothing to do
        self._unanswered = 0  # batches on their way
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def start(
        cls, client: KafkaClient, giving_up: threading.Event, incarnation: int = 0
    ) -> KafkaWork:
        return cls(client, await client.producer(), giving_up, incarnation)

    def declare_dead(self) -> None:
        """A log has a fence of this node."""
        listeners, self.on_dead = self.on_dead, []
        for listener in listeners:
            listener()

    @property
    def is_giving_up(self) -> bool:
        return self._giving_up.is_set()

    async def close(self) -> None:
        """Give up what follows; logs have been closed before."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._tasks, *self._following.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()

    # Sending

    def sequence(self, partition: Partition) -> int:
        """The number of the next record of a partition, for as long as the producer id holds."""
        return self._sequences.get(partition, 0)

    def count_stored(self, partition: Partition, records: int) -> None:
        self._sequences[partition] = self.sequence(partition) + records & SEQUENCE_MASK

    def send(self, job: KafkaJob, done: Callable[[], None]) -> None:
        """Store a batch; `done` is called once Kafka has answered."""
        if not self._unanswered:
            self._answered_s = self._loop.time()
            self._watch()
        self._unanswered += 1
        self._enqueue(job, done)

    def drop(self, partition: Partition) -> None:
        """What is on its way there is given up: the topic is being deleted."""
        self._dropped.add(partition)

    def _enqueue(self, job: KafkaJob, done: Callable[[], None]) -> None:
        self._waiting.append((job, done))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Give every leader that is idle a request with all batches that wait for it."""
        self._is_scheduled = False
        by_node: dict[int, list[tuple[KafkaJob, Callable[[], None]]]] = {}
        sizes: dict[int, int] = {}
        rest: list[tuple[KafkaJob, Callable[[], None]]] = []
        for one in self._waiting:
            node = self.client.leader(one[0].partition)
            size = sizes.get(node, 0) + len(one[0].data)
            if node in self._busy_nodes or (node in by_node and size > REQUEST_BYTES_MAX):
                rest.append(one)
            else:
                sizes[node] = size
                by_node.setdefault(node, []).append(one)
        self._waiting = rest
        for node, some in by_node.items():
            self._busy_nodes.add(node)
            self._spawn(self._deliver(node, some))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, node: int, some: list[tuple[KafkaJob, Callable[[], None]]]) -> None:
        jobs = {job.partition: job for job, _ in some}
        answers: dict[Partition, Stored] = {}
        if node >= 0:
            try:
                answers = await self.client.produce(
                    node, [(partition, job.data) for partition, job in jobs.items()]
                )
            except TROUBLES:
                for job, _ in some:
                    job.sent_count += 1
        again: list[tuple[KafkaJob, Callable[[], None]]] = []
        for job, done in some:
            answer = answers.get(job.partition)
            if answer is None or not self._settle(job, answer):
                again.append((job, done))
            else:
                self._unanswered -= 1
                done()
        if again:
            await self._refresh()
        self._busy_nodes.discard(node)
        for job, done in again:
            if job.partition in self._dropped:
                job.error = UnavailableError("the topic was deleted on another node")
                self._unanswered -= 1
                done()
            elif self.is_giving_up:
                self.is_in_doubt = True
                job.error = InDoubt(
                    "the broker was stopped before Kafka answered: nobody knows whether this was "
                    "stored"
                )
                self._unanswered -= 1
                done()
            else:
                self._enqueue(job, done)
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._dispatch)

    def _settle(self, job: KafkaJob, answer: Stored) -> bool:
        """Note what became of a batch; False if it has to be sent again."""
        if not answer.error:
            job.base_offset = answer.base_offset
            self._answered()
            return True
        failed = AnsweredError(answer.error, answer.message)
        if answer.error == OUT_OF_ORDER_SEQUENCE:
            job.is_lost = True
            job.error = UnavailableError("Kafka lost records that it had confirmed")
            return True
        # What may have been stored by an earlier attempt is never called refused.
        if job.sent_count == 0 and not is_passing(failed):
            job.error = refusal(failed)
            self._answered()
            return True
        job.sent_count += 1
        return False

    async def _refresh(self) -> None:
        if self._is_refreshing:
            await asyncio.sleep(BACKOFF_S)
            return
        self._is_refreshing = True
        try:
            await self.client.refresh()
        finally:
            self._is_refreshing = False

    # While Kafka does not answer

    def _answered(self) -> None:
        self._answered_s = self._loop.time()
        self.trouble = ""

    def _watch(self) -> None:
        """Look after a while whether Kafka has answered."""
        if self._timer is None:
            self._timer = self._loop.call_later(TROUBLE_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._unanswered:
            return
        if self._loop.time() - self._answered_s >= TROUBLE_S and not self.trouble:
            self.trouble = (
                f"Kafka at {self.client.bootstrap} does not confirm what is published: try again "
                "when its brokers are reachable"
            )
            for follower in list(self._followers.values()):
                follower.refuse_waiting(UnavailableError(self.trouble))
        self._watch()

    # Following

    def follow(self, log: Follower) -> None:
        self._followers[log.partition] = log
        self._begin_following(self.client.leader(log.partition))

    def _begin_following(self, node: int) -> None:
        if node not in self._following:
            task = self._following[node] = self._loop.create_task(self._follow(node))
            task.add_done_callback(lambda done: self._following.pop(node))
            self.insist(task, self._follow_all)

    def insist(self, task: asyncio.Task[None], again: Callable[[], None]) -> None:
        """If a mistake ends this task, people are told, and it is begun again.

        Otherwise a log would stay behind for good, and nobody would know why.
        """

        def see(done: asyncio.Task[None]) -> None:
            failed = None if done.cancelled() else done.exception()
            if not self._is_closed and (failed is not None or done.cancelled()):
                message = "a task of Kafka's logs failed, and is begun again"
                self._loop.call_exception_handler({"message": message, "exception": failed})
                self._loop.call_later(BACKOFF_S, again)

        task.add_done_callback(see)

    def _follow_all(self) -> None:
        if not self._is_closed:
            for partition in self._followers:
                self._begin_following(self.client.leader(partition))

    def leave(self, log: Follower) -> None:
        if self._followers.get(log.partition) is log:
            del self._followers[log.partition]

    async def _follow(self, node: int) -> None:
        """Fetch what a leader has, as long as it leads a log of ours."""
        while self._followers:
            places: dict[Partition, int] = {}
            is_anybody_writing = False
            for partition, log in self._followers.items():
                leader = self.client.leader(partition)
                if leader != node:
                    self._begin_following(leader)
                elif log.fence:
                    continue
                elif log.is_writing:
                    is_anybody_writing = True
                else:
                    places[partition] = log.next_offset
            if not places and not is_anybody_writing:
                break
            wait_ms = BUSY_WAIT_MS if is_anybody_writing else FOLLOW_WAIT_MS
            if not places:
                await asyncio.sleep(wait_ms / 1000)
            elif node < 0:
                await self._refresh()
            else:
                await self._fetch(node, places, wait_ms)

    async def _fetch(self, node: int, places: dict[Partition, int], wait_ms: int) -> None:
        try:
            found = await self.client.fetch(node, places, wait_ms, FOLLOWING)
        except TROUBLES:
            await self._refresh()
            return
        is_stale = False
        for partition, fetched in found.items():
            log = self._followers.get(partition)
            if log is None:
                continue
            if fetched.error == OFFSET_OUT_OF_RANGE:
                with suppress(PenstockError):  # asked again with the next fetch
                    await log.look_at_bounds()
            elif fetched.error:
                is_stale = True
            else:
                log.take(fetched)
        if is_stale:
            await self._refresh()
