"""Sharing: members of shares come and go, and shares that are behind go on from the logs.

What a member left behind is read again one by one and goes to another; only then new messages are
given out. A share that lags catches up with the topic, like sessions do, until it is level or
nobody has room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from penstock.broker.deliver.catchup import WHOLE_BATCH, CatchUp
from penstock.broker.deliver.members import Member
from penstock.broker.deliver.routes import Router, Sharers
from penstock.broker.deliver.stored_runs import stored_run, stored_runs
from penstock.broker.engine import Engine
from penstock.broker.session.session import Session, Subscription
from penstock.broker.share.dealing import Dealing
from penstock.broker.share.registry import Shares
from penstock.broker.share.share import Share
from penstock.broker.topic.topics import Topic
from penstock.core.delivery.run import Run, pieces
from penstock.log.files.segment import StaleSegment
from penstock.log.format.batch import Batch
from penstock.model.errors import CorruptError, Gap, UnavailableError


class Sharing:
    """The shares of connected sessions, and the way of messages from the logs to them."""

    def __init__(
        self,
        engine: Engine,
        router: Router,
        shares: Shares,
        on_trouble: Callable[[str], None],
        keeps_qos0: bool = False,
        dealing: Dealing | None = None,
    ) -> None:
        """`dealing`: as one of several nodes, which parts this one gives out."""
        self._engine = engine
        self._metrics = engine.metrics
        self._router = router
        self._shares = shares
        self._on_trouble = on_trouble
        self._keeps_qos0 = keeps_qos0
        self._dealing = dealing
        if dealing is not None:
            dealing.keeps_qos0 = keeps_qos0
            dealing.outlets.append(self)
        self._catchups: dict[int, CatchUp[Share]] = {}  # by topic id
        self._giving: dict[tuple[Share, int], asyncio.Task[None]] = {}  # again; by topic id

    @property
    def is_running(self) -> bool:
        """Is any share on its way through a log?"""
        return bool(self._giving) or any(catchup.is_running for catchup in self._catchups.values())

    # Members

    def subscribe(self, subscription: Subscription) -> None:
        """A connected session subscribes, or does so again with other options."""
        self.wake(self.join(self.hold(subscription)))

    def hold(self, subscription: Subscription) -> Subscription:
        client_id = subscription.session.client_id
        subscription.share = self._shares.hold(subscription.filter, client_id, subscription.qos)
        return subscription

    def hold_again(self, subscription: Subscription) -> None:
        """A session that was away comes back to a share that it holds."""
        share = self.hold(subscription).share
        assert isinstance(share, Share)
        self._shares.number(share)

    def restore(self, session: Session) -> None:
        """Restore the QoS 2 messages of shares that the session was being sent.

        A packet id that both have was used again: what is released by now is done, and so is
        QoS 1, which is stored only by checkpoints.
        """
        for share, packet_id, pin in list(self._shares.pinned(session.client_id)):
            if packet_id in session.twice and pin.is_released:
                share.settle(session.client_id, packet_id, pin.tag)
                continue
            session.window.restore(packet_id, pin.tag)
            session.shared[packet_id] = share
            session.twice.add(packet_id)
            if pin.is_released:
                session.note_released([packet_id])
            elif session.released is not None:
                session.released.discard(packet_id)

    def join(self, subscription: Subscription) -> Share:
        """A session that holds a share is connected."""
        share, session = subscription.share, subscription.session
        assert isinstance(share, Share)
        if self._dealing is not None:
            self._dealing.tell()
        elif not share.members:
            self._begin(share)
        share.join(Member(session, [subscription]))
        if session.shares is None:
            session.shares = set()
        session.shares.add(share)
        self._router.refresh(share)
        return share

    def _begin(self, share: Share) -> None:
        """Somebody is connected again: go on where the share was."""
        if not self._keeps_qos0 and not any(share.holders.values()):
            share.away = self._engine.topics.ends()  # at QoS 0 nothing is kept for those away
        for topic in self._engine.topics.all():
            offset = share.away.get(topic.id, 0)  # a topic born since counts from its beginning
            if offset < topic.log.bounds().end:
                share.lag(topic.id, offset)
        share.away = {}
        share.is_busy = True

    def part(self, subscription: Subscription) -> None:
        """A member goes; when it is the last one, the share stays where it is."""
        share, session = subscription.share, subscription.session
        assert isinstance(share, Share)
        if session.shares is not None:
            session.shares.discard(share)
        share.part(session.client_id)
        if self._dealing is not None:
            if not share.members:
                self.stop_parts(share, list(share.owned or ()))
            self._dealing.tell()
        elif not share.members:
            share.away = self._engine.topics.ends() | share.lags
            share.lags.clear()
            share.is_busy = True
            for catchup in self._catchups.values():
                catchup.leave(share)
        self._router.refresh(share)

    def let_go(self, subscription: Subscription) -> None:
        """Unsubscribed: what is out to the session is its own to finish."""
        assert isinstance(subscription.share, Share)
        self._shares.let_go(subscription.share, subscription.session.client_id)

    def detach(self, session: Session) -> None:
        """The connection is gone; what was out goes to others, at QoS 2 it waits or ends."""
        client_id = session.client_id
        is_over = session.vault is None or session.expiry_s == 0
        watch = self._engine.watch
        if watch is not None:  # before others are given it
            watch.left(client_id)
        held = [one.share for one in session.subscriptions.values() if one.share is not None]
        for share in {*held, *session.shared.values()}:
            assert isinstance(share, Share)
            if is_over:
                self._shares.forget(share, client_id)
            else:
                share.leave(client_id)
            self.wake(share)
        if is_over:
            self._shares.gone(client_id)

    # The outlet of `dealing.py`

    def stop_parts(self, share: Share, topic_ids: Iterable[int]) -> None:
        """Give out nothing more of these parts."""
        for topic_id in topic_ids:
            topic = self._engine.topics.by_id(topic_id)
            if topic is None:
                share.forget_topic(topic_id)
                continue
            share.stop_part(topic_id, topic.log.bounds().end)
            if topic_id in self._catchups:
                self._catchups[topic_id].leave(share)
        self._router.refresh(share)

    def refresh(self, share: Share) -> None:
        """The parts that are given out are others now."""
        self._router.refresh(share)
        self.wake(share)

    # Catching up

    def resume(self, session: Session) -> None:
        """The session has room again: its shares go on where they are behind."""
        for share in self._shares.behind.intersection(session.shares or ()):
            self.wake(share)

    def wake(self, share: Share) -> None:
        """Go on from the logs if somebody has room."""
        if not share.is_behind:
            self._shares.behind.discard(share)
            return
        if not share.has_room:
            return
        for topic_id in list(share.returned | share.lags.keys()):
            topic = self._engine.topics.by_id(topic_id)
            if topic is None:
                share.forget_topic(topic_id)
            elif topic_id not in share.returned:
                self._catchup(topic).join(share)
            elif (share, topic_id) not in self._giving:
                work = self._give_again(share, topic)
                task = asyncio.get_running_loop().create_task(work)
                self._giving[share, topic_id] = task

    def _catchup(self, topic: Topic) -> CatchUp[Share]:
        catchup = self._catchups.get(topic.id)
        if catchup is None:
            serve = partial(self._serve, topic)
            catchup = CatchUp(topic, serve, WHOLE_BATCH, self._metrics, self._on_trouble)
            self._catchups[topic.id] = catchup
        return catchup

    def _sharers(self, share: Share, topic: Topic, name: str) -> Sharers | None:
        for one in self._router.find_in(topic, name).shares:
            if one.share is share:
                return one
        return None

    def _is_expired(self, share: Share, topic: Topic, run: Run, places: range) -> bool:
        if not run.until_us or run.until_us > self._engine.clock.steady_us():
            return False
        self._lose(share, topic, run.name, places, "expired")
        return True

    def _lose(self, share: Share, topic: Topic, name: str, places: range, reason: str) -> None:
        """No member gets these records."""
        self._metrics.dropped[reason] += len(places)
        if self._engine.watch is not None:
            self._engine.watch.lost(share.key, topic, name, places, reason)

    # New messages, from where a share lags

    def _serve(self, topic: Topic, batch: Batch, start: int, end: int, here: set[Share]) -> None:
        readers = self._catchup(topic).readers
        wanted = {
            number
            for number, name in enumerate(batch.strings)
            if any(one.share in here for one in self._router.find_in(topic, name).shares)
        }
        if not wanted:
            return
        start = min(readers[share] for share in here)
        for base, run in stored_runs(batch, start, self._engine.clock, wanted):
            if here.isdisjoint(readers):
                return
            if run.qos == 0 and not self._keeps_qos0:  # already forwarded to the connected members
                continue
            for one in self._router.find_in(topic, run.name).shares:
                for first, piece in pieces(run) if run.qos == 0 else ((0, run),):
                    if one.share in here and one.share in readers:
                        self._hand(topic, one, base + first, piece)

    def _hand(self, topic: Topic, sharers: Sharers, base: int, run: Run) -> None:
        """Give out what the share has not passed, and nobody was given before a crash."""
        share = sharers.share
        catchup = self._catchup(topic)
        start, end = max(catchup.readers[share], base), base + run.count
        if start >= end or self._is_expired(share, topic, run, range(start, end)):
            return
        group = share.group(topic.id, start)
        while start < end:
            stop = start
            while stop < end and not group.is_ahead(stop):
                stop += 1
            if stop > start:
                part = run if stop - start == run.count else run.cut(start - base, stop - base)
                given = share.give(topic.id, start, part, sharers.members)
                self._metrics.records_delivered += given
                catchup.move(share, start + given)
                if given < part.count:
                    catchup.leave(share)
                    return
            start = max(stop, start + 1)

    # What came back

    async def _give_again(self, share: Share, topic: Topic) -> None:
        """Give out what members left behind, until all is out or nobody has room."""
        try:
            while topic.id in share.returned and share.has_room:
                if not await self._give_some_again(share, topic):
                    return
                await asyncio.sleep(0)
        except (OSError, CorruptError, UnavailableError, StaleSegment) as trouble:
            self._on_trouble(f"{topic.declared}: {trouble}")
        finally:
            del self._giving[share, topic.id]
        if topic.id not in share.returned:
            self.wake(share)

    async def _give_some_again(self, share: Share, topic: Topic) -> bool:
        """Read on once from the first that waits; False if nobody takes one of them now."""
        try:
            batches = await topic.read(share.groups[topic.id].first_waiting)
        except Gap:
            self._drop_below(share, topic, topic.log.bounds().first)
            return True
        for batch in batches:
            for offset in share.groups[topic.id].waiting() if topic.id in share.returned else ():
                if batch.base_offset <= offset < batch.end_offset:
                    run = stored_run(batch, offset, self._engine.clock)
                    if not self._give_one_again(share, topic, offset, run):
                        return False
        return True

    def _give_one_again(self, share: Share, topic: Topic, offset: int, run: Run) -> bool:
        if not share.members:
            return False
        topic_id = topic.id
        sharers = self._sharers(share, topic, run.name)
        place = range(offset, offset + 1)
        if self._is_expired(share, topic, run, place):
            share.discard(topic_id, offset)
        elif sharers is None:  # by those who are connected; the others may not hold them up
            share.discard(topic_id, offset)
            self._lose(share, topic, run.name, place, "not_authorized")
        elif not share.give_again(topic_id, offset, run, sharers.members):
            return False
        return True

    def _drop_below(self, share: Share, topic: Topic, first_offset: int) -> None:
        """Retention was faster; the names of what is gone are gone, too."""
        for offset in share.groups[topic.id].waiting() if topic.id in share.returned else ():
            if offset < first_offset:
                share.discard(topic.id, offset)
                self._lose(share, topic, "", range(offset, offset + 1), "retention")
