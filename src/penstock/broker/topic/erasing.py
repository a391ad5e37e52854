"""Erasing records of a topic for good: from the log, from its history, from what is retained.

The order is durable before the first file is touched and ends behind the last one, so whatever
happens in between, the next start goes on. Publishing and reading go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from penstock.broker.limited_log import LimitedLog
from penstock.broker.tasks import Tasks
from penstock.broker.topic.topics import Topic, Topics
from penstock.broker.upkeep.upkeep import Upkeep
from penstock.catalog.session.sessions import SessionCatalog
from penstock.core.erasure import Erasure
from penstock.core.naming.names import check_filter, quoted
from penstock.model.errors import NotAuthorized, PenstockError, UnavailableError
from penstock.model.record import Erased

SCRUB_TRIES_MAX: Final = 20  # 5 s: longer than a backup or a command reads the catalog at once
SCRUB_PAUSE_S: Final = 0.25


class RetainedMessages(Protocol):
    """Who holds the retained messages of a broker that has clients."""

    async def erase_retained(self, topic_id: int, erasure: Erasure, *, dry_run: bool) -> int:
        """Forget those of these records, durably; how many there were."""
        ...


class Erasing:
    """Carries out one order after another for each topic. Used on the event loop."""

    def __init__(
        self, topics: Topics, catalog: SessionCatalog, upkeep: Upkeep, log: LimitedLog
    ) -> None:
        self.retained: RetainedMessages | None = None  # None: only the catalog holds them
        self._topics = topics
        self._catalog = catalog
        self._upkeep = upkeep
        self._log = log
        self._turns: dict[int, asyncio.Lock] = {}  # by topic id
        self._tasks = Tasks(asyncio.get_running_loop())
        self._is_closed = False

    async def erase(self, name: str, names: str, before_us: int | None, *, dry_run: bool) -> Erased:
        """Erase the records that are there now; what was found, once nothing is left of it.

        If that fails, or nobody waits for it any more, the work goes on in the background.
        """
        topic = self._topics.get(name)
        if topic.is_built_in:
            raise NotAuthorized(
                f"topic {quoted(topic.declared)} is built in and its records cannot be erased: "
                "its retention can be changed"
            )
        erasure = Erasure(check_filter(names), topic.log.bounds().end, before_us)
        if dry_run:
            return await self._carry_out(topic, erasure, dry_run=True)
        found: asyncio.Future[Erased] = asyncio.get_running_loop().create_future()
        self._tasks.spawn(self._order(topic, erasure, found))
        return await asyncio.shield(found)

    async def _order(self, topic: Topic, erasure: Erasure, found: asyncio.Future[Erased]) -> None:
        try:
            async with self._turn(topic):
                await topic.log.keep_erasures([*topic.log.erasures, erasure])
                done = await self._finish(topic)
        except (PenstockError, OSError) as failed:
            error = failed if isinstance(failed, PenstockError) else UnavailableError(str(failed))
            if not found.done():
                found.set_exception(_told(error) if erasure in topic.log.erasures else error)
        else:
            if not found.done():
                found.set_result(done[-1])

    async def go_on(self) -> None:
        """Begin to finish what was ordered earlier; called at the start and now and then."""
        for topic in self._topics.working():
            if topic.log.erasures and not self._turn(topic).locked() and not self._is_closed:
                self._tasks.spawn(self._go_on(topic))

    async def _go_on(self, topic: Topic) -> None:
        part = f"erasing {topic.declared}"
        async with self._turn(topic):
            try:
                await self._finish(topic)
            except (PenstockError, OSError) as trouble:
                if not topic.is_gone:
                    text = f"records of {topic.declared} are not erased yet: {trouble}"
                    self._upkeep.note_trouble(part, text)
            else:
                self._upkeep.end_trouble(part)

    def _turn(self, topic: Topic) -> asyncio.Lock:
        return self._turns.setdefault(topic.id, asyncio.Lock())

    async def _finish(self, topic: Topic) -> Sequence[Erased]:
        """Carry out all orders of a topic, oldest first."""
        done = []
        while topic.log.erasures:
            erasure = topic.log.erasures[0]
            erased = await self._carry_out(topic, erasure, dry_run=False)
            await topic.log.keep_erasures(topic.log.erasures[1:])
            done.append(erased)
            values = {
                "topic": topic.declared,
                "names": erasure.names,
                "log": erased.log_records,
                "history": erased.history_records,
                "retained": erased.retained,
            }
            text = (
                "records of topic %(topic)r named %(names)r were erased: %(log)d in the log, "
                "%(history)d in the history, %(retained)d retained"
            )
            self._log.info("records erased", text, values)
        return done

    async def _carry_out(self, topic: Topic, erasure: Erasure, *, dry_run: bool) -> Erased:
        # The history comes after the log: what is copied into it meanwhile is erased there.
        in_log = await topic.log.erase(erasure, dry_run=dry_run)
        in_history = await topic.log.erase_history(erasure, dry_run=dry_run)
        holder = self.retained or self._catalog
        retained = await holder.erase_retained(topic.id, erasure, dry_run=dry_run)
        if not dry_run:
            await self._scrub()
        return Erased(
            topic=topic.declared,
            names=erasure.names,
            before=erasure.before_us,
            end_offset=erasure.end,
            log_records=in_log,
            history_records=in_history,
            retained=retained,
            dry_run=dry_run,
        )

    async def _scrub(self) -> None:
        """Nothing of erased retained messages is left in the catalog's files on return.

        Other programs may read the catalog, which keeps its write-ahead log: they get some time.
        If they need longer, the order stays, so that neither upkeep nor the next start forgets it.
        """
        for _ in range(SCRUB_TRIES_MAX - 1):
            try:
                return await self._catalog.scrub()
            except UnavailableError:
                await asyncio.sleep(SCRUB_PAUSE_S)
        await self._catalog.scrub()

    async def wait_done(self) -> None:
        """Suspends until nothing is under way."""
        await self._tasks.wait_done()

    async def close(self) -> None:
        """End what is under way; the next start goes on."""
        self._is_closed = True
        self._tasks.cancel()
        await self.wait_done()


def _told(error: PenstockError) -> UnavailableError:
    return UnavailableError(
        f"not all records are erased yet: {error}; the order is stored, and the broker goes on "
        "with it by itself"
    )
