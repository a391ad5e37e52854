"""QoS 2 from clients: which packet ids they have opened and not yet released.

A mark of the message in the log opens a packet id, and a mark without a message releases it, so
what a client is told is durable. A checkpoint saves what changed since the one before it; after a
crash the marks are followed from there.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Iterable
from typing import Final

from penstock.broker.session.session import Session
from penstock.broker.tasks import Spawn
from penstock.broker.topic.topics import Topic, Topics
from penstock.catalog.session.saving import Checkpoint
from penstock.log.format.marks import MARK_QOS2_OPENED, MARK_QOS2_RELEASED, Mark
from penstock.log.interface import Waiter
from penstock.log.waiting import append_durably
from penstock.model.errors import PenstockError

_KEY: Final = struct.Struct(">QH")

Changes = dict[tuple[int, int], bool]  # topic id, packet id -> is it open now?


def opened_mark(session: Session, packet_id: int, index: int) -> Mark:
    """Beside a QoS 2 message: this packet id is taken until it is released."""
    return Mark(MARK_QOS2_OPENED, _KEY.pack(session.incarnation, packet_id), index)


class InboundQos2:
    """A view over the marks of all clients; used on the event loop."""

    def __init__(self, topics: Topics, spawn: Spawn) -> None:
        self._topics = topics
        self._spawn = spawn
        self._changes: dict[str, Changes] = {}  # by client, since the last checkpoint
        self._taken: dict[str, Changes] = {}  # by the checkpoint that is being saved
        self._storing: Counter[str] = Counter()  # marks on their way to the disk, by client
        self._in_doubt: set[str] = set()
        self._settled: list[asyncio.Future[None]] = []  # wait for some client's to be there

    # Messages

    def begin_opening(self, session: Session, packet_ids: list[int]) -> None:
        """Their messages and marks are on their way to the disk."""
        if session.opening is None:
            session.opening = set()
        session.opening.update(packet_ids)
        self._storing[session.client_id] += 1

    def end_opening(
        self, session: Session, topic: Topic, packet_ids: list[int], *, is_open: bool
    ) -> None:
        """They are durable, or were refused."""
        client_id = session.client_id
        assert session.opening is not None, "it began"
        session.opening.difference_update(packet_ids)
        if is_open:
            self._note(client_id, topic.id, packet_ids, True)
        self._stored(client_id)

    def _stored(self, client_id: str) -> None:
        self._storing[client_id] -= 1
        if not self._storing[client_id]:
            del self._storing[client_id]
            settled, self._settled = self._settled, []
            for one in settled:
                if not one.done():
                    one.set_result(None)

    def close_opened(self, session: Session, packet_ids: list[int], waiter: Waiter) -> None:
        """Store that these packet ids are released; the waiter hears when that is durable."""
        self._storing[session.client_id] += 1
        self._spawn(self._close_opened(session, packet_ids, waiter))

    async def _close_opened(self, session: Session, packet_ids: list[int], waiter: Waiter) -> None:
        by_topic: dict[int, list[int]] = {}
        for packet_id in packet_ids:
            topic_id = session.opened.pop(packet_id, None)
            if topic_id is not None:
                by_topic.setdefault(topic_id, []).append(packet_id)
        try:
            while by_topic:
                topic_id, ids = next(iter(by_topic.items()))
                topic = self._topics.by_id(topic_id)
                if topic is not None:
                    keys = [_KEY.pack(session.incarnation, packet_id) for packet_id in ids]
                    marks = [Mark(MARK_QOS2_RELEASED, key) for key in keys]
                    await append_durably(topic.log, [], marks)
                    self._note(session.client_id, topic_id, ids, False)
                del by_topic[topic_id]
        except PenstockError as refused:
            for topic_id, ids in by_topic.items():  # they are open still, and asked for again
                session.opened.update(dict.fromkeys(ids, topic_id))
            waiter.refused(refused)
        else:
            waiter.committed(0)
        finally:
            self._stored(session.client_id)

    # Sessions

    def doubt(self, session: Session) -> None:
        """The broker stops and does not know whether a message of this session was stored."""
        self._in_doubt.add(session.client_id)

    def is_in_doubt(self, client_id: str) -> bool:
        return client_id in self._in_doubt

    async def wait_known(self, client_id: str) -> None:
        """Suspends until it is known which marks of an earlier connection were stored."""
        while self._storing[client_id]:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settled.append(settled)
            await settled

    def is_storing(self, client_id: str) -> bool:
        """Are marks of this client on their way to the disk?"""
        return self._storing[client_id] > 0

    def opened_of(self, client_id: str, opened: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """What a client has open: what was known when it went, and what was stored since."""
        found = dict.fromkeys(opened, True) | self._known(client_id)
        return [key for key, is_open in found.items() if is_open]

    def restore(self, session: Session, opened: list[tuple[int, int]]) -> None:
        """Give a session back what it has open: what the catalog has, and changes since."""
        for topic_id, packet_id in opened:
            session.opened[packet_id] = topic_id
        for (topic_id, packet_id), is_open in self._known(session.client_id).items():
            if is_open:
                session.opened[packet_id] = topic_id
            elif session.opened.get(packet_id) == topic_id:
                del session.opened[packet_id]

    def _known(self, client_id: str) -> Changes:
        """Changes that may not be in the catalog yet."""
        return self._taken.get(client_id, {}) | self._changes.get(client_id, {})

    def forget(self, client_id: str) -> None:
        """The client begins anew, or its session is gone."""
        self._changes.pop(client_id, None)
        self._taken.pop(client_id, None)

    # The view

    def follow(self, topic_id: int, mark: Mark, incarnations: dict[int, str]) -> None:
        """A mark found in a log; of whom, `incarnations` tells."""
        incarnation, packet_id = _KEY.unpack(mark.key)
        client_id = incarnations.get(incarnation)
        if client_id is not None:
            self._note(client_id, topic_id, [packet_id], mark.kind == MARK_QOS2_OPENED)

    def _note(self, client_id: str, topic_id: int, packet_ids: list[int], is_open: bool) -> None:
        changes = self._changes.setdefault(client_id, {})
        for packet_id in packet_ids:
            changes[topic_id, packet_id] = is_open

    def take_changes(self, point: Checkpoint) -> bool:
        self._taken, self._changes = self._changes, {}
        for client_id, changes in self._taken.items():
            for key, is_open in changes.items():
                (point.opened if is_open else point.released).append((client_id, *key))
        return bool(self._taken)

    def settle(self, *, is_saved: bool) -> None:
        if not is_saved:
            for client_id, changes in self._taken.items():
                self._changes[client_id] = changes | self._changes.get(client_id, {})
        self._taken = {}
