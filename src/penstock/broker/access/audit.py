"""The audit topic: who changed what, and who was refused a login.

Every administrative act and every refused login of a tenant becomes a record of its topic
`$audit`, which the first of them creates. Of a flood of refused logins, or of failed acts of
somebody who is no administrator, most are recorded only as a number (core/refusals.py). Only the
broker writes there, nobody deletes it, and a filter with a leading wildcard does not match its
names. No record holds a password, a key or a token. While no user exists, everybody is the same
administrator and nothing is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sequence
from typing import Final

import msgspec

from penstock.broker.figures.metrics import Metrics
from penstock.broker.limited_log import LimitedLog
from penstock.broker.tasks import Tasks
from penstock.broker.topic.topics import Topics
from penstock.core.delivery.run import Run, run_of
from penstock.core.masking import masked
from penstock.core.naming.names import AUDIT_TOPIC
from penstock.core.networks import network_of_peer
from penstock.core.refusals import OTHERS, WINDOW_S, Refusals
from penstock.log.interface import LogSettings
from penstock.log.waiting import append_durably
from penstock.model.errors import PenstockError
from penstock.model.record import DEFAULT_TENANT, TenantId

ADMIN: Final = f"{AUDIT_TOPIC}/admin"  # names of the records
LOGIN: Final = f"{AUDIT_TOPIC}/login"
PENDING_MAX: Final = 10_000  # records that wait for the disk; more are lost and counted
TEXT_CHARS_MAX: Final = 500  # of what a client said
REFUSED: Final = "refused"
DONE: Final = "done"
FAILED: Final = "failed"
SIGNAL: Final = "signal"  # where it comes from if the process was sent one


class Entry(msgspec.Struct, frozen=True):
    """One record, as JSON."""

    who: str  # a user, as it logged in or tried to; '' for an anonymous client
    source: str = msgspec.field(name="from")  # its address, `data directory` or `signal`
    act: str
    result: str
    reason: str = ""
    details: str = ""  # what was asked for, besides what the act says


def claimed_tenant(login: str, tenants: Container[TenantId]) -> TenantId:
    """The tenant that a login name says; the default one if it says none that exists."""
    tenant, slash, _ = login.partition("/")
    return TenantId(tenant) if slash and TenantId(tenant) in tenants else DEFAULT_TENANT


class Audit:
    """Writes entries in the order in which they come. Used on the event loop."""

    def __init__(
        self,
        tenant: TenantId,
        topics: Topics,
        settings: LogSettings,
        is_on: Callable[[], bool],
        metrics: Metrics,
        log: LimitedLog,
    ) -> None:
        self.tenant = tenant
        self._topics = topics
        self._settings = settings
        self._is_on = is_on
        self._metrics = metrics
        self._log = log
        self._pending: list[Run] = []
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(self._loop)
        self._refusals = Refusals()
        self._failures = Refusals()  # by user instead of by network
        self._window: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def note_login(self, who: str, source: str, door: str, reason: str) -> None:
        """Somebody was refused a login."""
        if self._is_on() and self._admit(self._refusals, network_of_peer(source)):
            self._note(LOGIN, Entry(_told(who), source, f"login {door}", REFUSED, _told(reason)))

    def _admit(self, counted: Refusals, whose: str) -> bool:
        """Whether one more of these is recorded by itself."""
        if self._window is None:
            self._window = self._loop.call_later(WINDOW_S, self._end_window)
        return counted.admit(whose, self._loop.time())

    def _end_window(self) -> None:
        self._window = None
        for user, count in self._failures.take():
            reason = f"{count} more failed acts within {WINDOW_S:g} s"
            who = "" if user == OTHERS else user
            self._note(ADMIN, Entry(who, "", "administer", REFUSED, reason))
        for network, count in self._refusals.take():
            reason = f"{count} more refused logins within {WINDOW_S:g} s"
            self._note(LOGIN, Entry("", network, "login", REFUSED, reason))

    def note_signal(self, act: str, problems: Sequence[str]) -> None:
        """A signal to the process made the broker do something."""
        result = FAILED if problems else DONE
        self._note(ADMIN, Entry("", SIGNAL, act, result, _told("; ".join(problems))))

    async def note_act(self, entry: Entry, *, is_bounded: bool = False) -> None:
        """Somebody administered something, or tried to; durable on return if the disk allows it.

        Acts that are bounded are recorded one by one only up to a number, like refused logins.
        """
        if is_bounded and self._is_on() and not self._admit(self._failures, entry.who):
            return
        act, reason, details = _told(entry.act), _told(entry.reason), _told(entry.details)
        self._note(ADMIN, msgspec.structs.replace(entry, act=act, reason=reason, details=details))
        if self._writing is not None:
            await asyncio.shield(self._writing)

    def _note(self, name: str, entry: Entry) -> None:
        if not self._is_on():
            return
        if len(self._pending) >= PENDING_MAX:
            self._metrics.dropped["audit"] += 1
            return
        self._pending.append(run_of(name, [msgspec.json.encode(entry)]))
        if self._writing is None:
            self._writing = self._tasks.spawn(self._write())

    async def _write(self) -> None:
        runs: list[Run] = []
        try:
            topic = await self._topics.create_built_in(AUDIT_TOPIC, self._settings)
            while self._pending:
                runs, self._pending = self._pending, []
                await append_durably(topic.log, runs)
                runs = []
        except PenstockError as failed:
            self._metrics.dropped["audit"] += len(runs) + len(self._pending)
            self._pending = []
            text = "acts could not be recorded in the audit topic: %(failed)s"
            self._log.warning("audit failed", text, {"failed": str(failed)})
        finally:
            self._writing = None

    async def close(self) -> None:
        """Finish what was begun."""
        if self._window is not None:
            self._window.cancel()
            self._end_window()
        await self._tasks.wait_done()


def _told(text: str) -> str:
    """What a client said, short, and without a key or token that it put in the wrong place."""
    text = masked(text)
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 1] + "…"
