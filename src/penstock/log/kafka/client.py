"""Connections to Kafka: the one place that knows aiokafka, whose inner client it uses (pinned).

aiokafka brings connections, logins, metadata and the bytes of requests; what is asked, and what
answers mean, is decided here. A passing trouble (a leader that moves, a broker that restarts) is
tried again for a while. What cannot be done becomes an UnavailableError that names the servers.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import conn, errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import (
    AlterConfigsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import InitProducerIdRequest
from aiokafka.structs import TopicPartition

from penstock.log.kafka.requests import (
    EndOfEpochRequest,
    LogDirsRequest,
    OffsetsRequest,
    Partition,
)
from penstock.model.clock import SystemClock
from penstock.model.errors import NotAuthorized, RefusedError, TooLarge, UnavailableError
from penstock.model.limits import MIB

T = TypeVar("T")

REQUEST_S_MAX: Final = 8  # a broker that does not answer is given up
ACK_S_MAX: Final = 4  # how long a leader waits for its followers before it says so
ASK_S_MAX: Final = 20  # a passing trouble is tried again for so long
BACKOFF_S: Final = 0.1
FETCH_BYTES: Final = MIB
SYSTEM_CA: Final = "system"

EARLIEST: Final = -2
LATEST: Final = -1
_READ_COMMITTED: Final = 1
_ALL_REPLICAS: Final = -1
_TOPIC: Final = 2  # a kind of resource that has settings

# Connections that do not wait for each other: a broker answers those of one in order.
WRITING: Final = "writing"
READING: Final = "reading"
FOLLOWING: Final = "following"

logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what matters is said by our own errors
# A connection stops reading while twice this is unread: with its 64 KiB that is ten times a fetch.
conn.READER_LIMIT = 2 * FETCH_BYTES


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Where Kafka is and how to log in there."""

    bootstrap: str
    tls_ca: str = ""  # a file of certificates, or `system`; empty: no TLS
    sasl_mechanism: str = ""  # PLAIN, SCRAM-SHA-256, SCRAM-SHA-512; empty: no login
    sasl_user: str = ""
    sasl_password: str = field(default="", repr=False)


class Fetched(NamedTuple):
    """What a fetch brought of one partition."""

    error: int
    high_watermark: int
    log_start: int
    aborted: list[tuple[int, int]]  # producer id, first offset: of transactions that were aborted
    data: bytes


class Stored(NamedTuple):
    """What became of a batch."""

    error: int
    base_offset: int
    message: str


class KafkaClient:
    """Made by `start`; used on the event loop that started it."""

    def __init__(self, address: KafkaAddress, inner: Any) -> None:
        self._address = address
        self._inner = inner
        self._clock = SystemClock()  # of real waits, whatever time the records are stamped with

    @classmethod
    async def start(cls, address: KafkaAddress) -> KafkaClient:
        """Connect; UnavailableError if no server answers or the login is rejected."""
        inner = AIOKafkaClient(
            bootstrap_servers=address.bootstrap,
            client_id="penstock",
            request_timeout_ms=REQUEST_S_MAX * 1000,
            retry_backoff_ms=int(BACKOFF_S * 1000),
            security_protocol=_protocol(address),
            ssl_context=_tls(address),
            sasl_mechanism=address.sasl_mechanism or "PLAIN",
            sasl_plain_username=address.sasl_user or None,
            sasl_plain_password=address.sasl_password or None,
        )
        client = cls(address, inner)
        try:
            await inner.bootstrap()
        except (errors.KafkaError, OSError, TimeoutError) as failed:
            await inner.close()
            raise UnavailableError(
                f"Kafka at {address.bootstrap} cannot be reached or rejects the login "
                f"({_reason(failed)}): check [kafka] bootstrap, tls_ca and the sasl settings"
            ) from failed
        return client

    async def close(self) -> None:
        await self._inner.close()

    @property
    def bootstrap(self) -> str:
        return self._address.bootstrap

    # Who leads

    def leader(self, partition: Partition) -> int:
        """The node that leads a partition; -1 if nobody does or we do not know."""
        node = self._inner.cluster.leader_for_partition(TopicPartition(*partition))
        return -1 if node is None else int(node)

    async def refresh(self) -> None:
        """Ask who leads what; wait a moment first, since this follows a failure."""
        await asyncio.sleep(BACKOFF_S)
        with suppress(TimeoutError):  # nobody waits here for ever: who needs it asks again
            async with asyncio.timeout(REQUEST_S_MAX):
                await self._inner.force_metadata_update()

    async def topics(self) -> dict[str, int]:
        """All topics and the number of their partitions."""

        async def ask() -> dict[str, int]:
            found = await self._inner.fetch_all_metadata()
            names = found.topics(exclude_internal_topics=True)
            return {name: len(found.partitions_for_topic(name) or ()) for name in names}

        return await self._patiently(ask)

    # Writing and reading

    async def produce(
        self, node: int, batches: Iterable[tuple[Partition, bytes]]
    ) -> dict[Partition, Stored]:
        """Store batches on the leader of their partitions and on its followers.

        KafkaError of `is_passing` if there is no answer: then nobody knows what was stored.
        """
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for partition, data in batches:
            topics.setdefault(partition.topic, []).append((partition.number, data))
        request = ProduceRequest(None, _ALL_REPLICAS, ACK_S_MAX * 1000, list(topics.items()))
        answer = await self._inner.send(node, request, group=WRITING)
        found: dict[Partition, Stored] = {}
        for topic, partitions in answer.topics:
            for number, error, offset, *rest in partitions:
                message = rest[-1] if len(rest) > 2 and rest[-1] else ""
                found[Partition(topic, number)] = Stored(error, offset, message)
        return found

    async def fetch(
        self, node: int, places: dict[Partition, int], wait_ms: int, group: str
    ) -> dict[Partition, Fetched]:
        """Records from these offsets on, those of aborted transactions named; waits for some."""
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for partition, offset in places.items():
            topics.setdefault(partition.topic, []).append((partition.number, offset, FETCH_BYTES))
        most = max(FETCH_BYTES, min(len(places), 16) * FETCH_BYTES)
        request = FetchRequest(wait_ms, 1, most, _READ_COMMITTED, list(topics.items()))
        answer = await self._inner.send(node, request, group=group)
        found: dict[Partition, Fetched] = {}
        for topic, partitions in answer.topics:
            for number, error, high, _, start, aborted, *rest in partitions:
                fetched = Fetched(error, high, start, aborted or [], rest[-1] or b"")
                found[Partition(topic, number)] = fetched
        return found

    async def producer(self) -> tuple[int, int]:
        """A new producer id and its epoch: batches are numbered under it."""

        async def ask() -> tuple[int, int]:
            node = self._inner.get_random_node()
            request = InitProducerIdRequest(None, 0)
            answer = await self._inner.send(node, request, group=WRITING)
            _check(answer.error_code)
            return answer.producer_id, answer.producer_epoch

        return await self._patiently(ask)

    # Asking a leader

    async def offset(self, partition: Partition, time_ms: int) -> tuple[int, int]:
        """The first offset stamped at or after this, or -1; and the epoch of its leader.

        EARLIEST and LATEST stand for the bounds.
        """

        async def ask() -> tuple[int, int]:
            request = OffsetsRequest(partition, _READ_COMMITTED, time_ms)
            answer = await self._ask(partition, request)
            ((_, ((_, error, _, offset, epoch),)),) = answer.topics
            _check(error)
            return offset, epoch

        return await self._patiently(ask)

    async def end_of_epoch(self, partition: Partition, epoch: int) -> int:
        """Where the records of a leader's epoch end; -1 if it is not known."""

        async def ask() -> int:
            answer = await self._ask(partition, EndOfEpochRequest(partition, epoch))
            ((_, ((error, _, _, offset),)),) = answer.topics
            _check(error)
            return int(offset)

        return await self._patiently(ask)

    async def delete_before(self, partition: Partition, offset: int) -> int:
        """Let a partition begin at `offset`; where it begins now."""

        async def ask() -> int:
            topics = [(partition.topic, [(partition.number, offset)])]
            answer = await self._ask(partition, DeleteRecordsRequest(topics, ACK_S_MAX * 1000))
            ((_, ((_, low, error, *_),), *_),) = answer.topics
            _check(error)
            return int(low)

        return await self._patiently(ask)

    async def stored_bytes(self, partition: Partition) -> int:
        """What a partition takes in the files of its leader."""

        async def ask() -> int:
            answer = await self._ask(partition, LogDirsRequest(partition))
            size = 0
            for error, _, topics in answer.results:
                _check(error)
                for _, partitions in topics:
                    size += sum(one[1] for one in partitions if not one[3])
            return size

        return await self._patiently(ask)

    async def _ask(self, partition: Partition, request: object) -> Any:
        node = self.leader(partition)
        if node < 0:
            raise errors.LeaderNotAvailableError(f"{partition.topic} has no leader")
        return await self._inner.send(node, request, group=READING)

    # Topics

    async def create_topic(
        self, topic: str, partitions: int, replication: int, settings: dict[str, str]
    ) -> None:
        """Make a topic and wait until it has leaders; one that exists is left as it is."""

        async def ask() -> None:
            wanted: list[object] = [(topic, partitions, replication, [], list(settings.items()))]
            request = CreateTopicsRequest(wanted, ASK_S_MAX * 1000, False)
            answer = await self._to_anybody(request)
            ((_, error, message),) = answer.topic_errors
            if error != _TOPIC_EXISTS:
                _check(error, message)

        async def look() -> None:
            await self._inner.force_metadata_update()
            if any(self.leader(Partition(topic, number)) < 0 for number in range(partitions)):
                raise errors.LeaderNotAvailableError(f"{topic} has no leader yet")

        await self._patiently(ask)
        await self._patiently(look)

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic and wait until nobody lists it; one that is missing is no error."""

        async def ask() -> None:
            answer = await self._to_anybody(DeleteTopicsRequest([topic], ASK_S_MAX * 1000))
            ((_, error),) = answer.topic_error_codes
            if error != _UNKNOWN_TOPIC:
                _check(error)

        async def look() -> None:
            await self._inner.force_metadata_update()
            if topic in self._inner.cluster.topics():
                raise errors.StaleMetadata(f"{topic} is still listed")

        await self._patiently(ask)
        await self._patiently(look)

    async def alter_topic(self, topic: str, settings: dict[str, str]) -> None:
        """Replace the settings of a topic."""

        async def ask() -> None:
            request = AlterConfigsRequest([(_TOPIC, topic, list(settings.items()))])
            answer = await self._to_anybody(request)
            for error, message, *_ in answer.resources:
                _check(error, message)

        await self._patiently(ask)

    async def _to_anybody(self, request: object) -> Any:
        """Ask a broker: each of them passes it on to the controller."""
        node = self._inner.get_random_node()
        return await self._inner.send(node, request, group=READING)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again while the trouble may pass; then UnavailableError, or RefusedError."""
        deadline_s = self._clock.monotonic_s() + ASK_S_MAX
        while True:
            try:
                return await ask()
            except TROUBLES as failed:
                if not is_passing(failed):
                    raise refusal(failed) from failed
                if self._clock.monotonic_s() >= deadline_s:
                    raise self.unavailable(failed) from failed
            await self.refresh()

    def unavailable(self, failed: BaseException) -> UnavailableError:
        return UnavailableError(
            f"Kafka at {self.bootstrap} rejected or lost a request ({_reason(failed)}): try again "
            "when its brokers are reachable"
        )


class AnsweredError(Exception):
    """A broker answered that it did not do what it was asked."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"{errors.for_code(code).__name__} {message}".strip())
        self.code = code


TROUBLES: Final = (errors.KafkaError, AnsweredError, OSError, TimeoutError)


def is_passing(failed: BaseException) -> bool:
    """Whether the same request may work later."""
    if isinstance(failed, AnsweredError):
        return failed.code in _PASSING
    return not isinstance(failed, _BAD_LOGIN)


def refusal(failed: BaseException) -> RefusedError:
    """Why Kafka does not do what it was asked, for good."""
    reason = _reason(failed)
    if isinstance(failed, AnsweredError) and failed.code in _NOT_ALLOWED:
        return NotAuthorized(
            f"Kafka does not allow it ({reason}): the user that logs in there needs the rights to "
            "create, describe, alter, read, write and delete the topics with our prefix"
        )
    if isinstance(failed, AnsweredError) and failed.code in _TOO_LARGE:
        return TooLarge(
            f"Kafka rejects it ({reason}): raise max.message.bytes of the topic, or publish less "
            "at once"
        )
    return RefusedError(f"Kafka rejects it: {reason}")


def _check(code: int, message: str | None = None) -> None:
    if code:
        raise AnsweredError(code, message or "")


# Kafka's error codes.
OFFSET_OUT_OF_RANGE: Final = 1
OUT_OF_ORDER_SEQUENCE: Final = 45
_UNKNOWN_TOPIC: Final = 3
_TOPIC_EXISTS: Final = 36
_TOO_LARGE: Final = frozenset([10, 18])
_NOT_ALLOWED: Final = frozenset([29, 31])
# What passes: leaders, coordinators and controllers that move, replicas that are behind or late,
# a disk that fails on one broker, a topic that not every broker knows yet.
_PASSING: Final = frozenset(
    [2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 74, 75, 78, 89, 100]
)
_BAD_LOGIN: Final = (
    errors.AuthenticationFailedError,
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
)


def _reason(failed: BaseException) -> str:
    text = str(failed).splitlines()[0] if str(failed) else ""
    return text or type(failed).__name__


def _protocol(address: KafkaAddress) -> str:
    if address.sasl_mechanism:
        return "SASL_SSL" if address.tls_ca else "SASL_PLAINTEXT"
    return "SSL" if address.tls_ca else "PLAINTEXT"


def _tls(address: KafkaAddress) -> ssl.SSLContext | None:
    if not address.tls_ca:
        return None
    try:
        return ssl.create_default_context(
            cafile=None if address.tls_ca == SYSTEM_CA else address.tls_ca
        )
    except (OSError, ssl.SSLError) as failed:
        raise RefusedError(
            f"[kafka] tls_ca {address.tls_ca!r} cannot be used ({failed}): it must be a file with "
            "certificates in PEM format, or 'system'"
        ) from failed
