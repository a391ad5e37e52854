"""What every client must and may have received, in plain lists: slow, and obviously right.

One thread drives all clients, so everything it says and hears has a moment, a number that grows. A
message sent after a subscription was granted and acknowledged to its publisher is owed; one that
was acknowledged before the subscription was asked for, or sent after its end was confirmed, may not
come. What lies between may. `close` forgets what is settled, so a run of hours stays small.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass

from penstock.core.naming.names import matches

EVENTS_MAX = 20_000  # kept for the story behind a problem
SHOWN_MAX = 60  # of the last ones, and of those about the clients of the first problem


@dataclass(slots=True, eq=False)
class Message:
    """One publish, and what its publisher knows of it."""

    publisher: str
    number: int
    name: str
    qos: int
    retain: bool
    is_empty: bool  # it takes back what is retained; nobody can say which of them came
    sent_at: int
    acked_at: int = 0  # 0: not yet
    is_resent: bool = False

    @property
    def payload(self) -> bytes:
        return b"" if self.is_empty else f"{self.publisher} {self.number}".encode()


@dataclass(slots=True)
class Interval:
    """From the request for a filter to the answer that it has ended."""

    filter: str
    asked_at: int
    granted_at: int = 0
    is_sure: bool = False  # granted, and nothing said since that could have ended it
    ended_at: int = 0


class Ledger:
    """The moments, the messages since the last settlement, and everything that was wrong."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.events: deque[str] = deque(maxlen=EVENTS_MAX)
        self.moment = 0
        self.receivers: list[Receiver] = []
        self.total = 0
        self.settled: Counter[str] = Counter()  # publisher -> numbers below it are settled
        self._messages: dict[str, list[Message]] = {}

    def note(self, event: str) -> int:
        self.moment += 1
        self.events.append(f"{self.moment:>7} {event}")
        return self.moment

    def complain(self, problem: str) -> None:
        self.problems.append(f"at {self.note(f'PROBLEM {problem}')}: {problem}")

    def story(self) -> str:
        """The events that led to the first problem, and the problems."""
        words = set(re.findall(r"[a-z]+\d*-[-\w]+|\bp\d\b", self.problems[0]))
        about = [one for one in self.events if words & set(one.replace(":", "").split())]
        about += [one for one in self.events if "the broker" in one]
        parts = {
            f"events of {', '.join(sorted(words))}": sorted(about)[-SHOWN_MAX:],
            "the last events": [*self.events][-SHOWN_MAX:],
            "problems": self.problems[:20],
        }
        return "\n\n".join("\n".join([f"{title}:", *lines]) for title, lines in parts.items())

    def sent(self, message: Message) -> None:
        self.total += 1
        self._messages.setdefault(message.publisher, []).append(message)

    def acked(self, message: Message) -> None:
        self.moment += 1
        message.acked_at = self.moment
        for one in self.receivers:
            one.owe(message)

    def find(self, payload: bytes) -> Message | None:
        """The message, if it is not settled yet; complains of one that was never sent."""
        publisher, number = payload.decode().split()
        index = int(number) - self.settled[publisher]
        if index < 0:
            return None
        known = self._messages.get(publisher, [])
        if index >= len(known):
            self.complain(f"{payload!r} was never sent")
            return None
        return known[index]

    def close(self) -> None:
        """All that was sent has come where it must."""
        for one in self.receivers:
            one.close([message for all_ in self._messages.values() for message in all_])
        for publisher, messages in self._messages.items():
            self.settled[publisher] += len(messages)
            messages.clear()


class Receiver:
    """A session with plain subscriptions of one QoS, or a whole group of shared ones."""

    def __init__(self, ledger: Ledger, title: str, qos: int, *, is_group: bool = False) -> None:
        self.owed: dict[Message, None] = {}
        self.count = 0
        self._ledger = ledger
        self._title = title
        self._qos = qos
        self._is_group = is_group
        self._intervals: list[Interval] = []
        self._received: set[Message] = set()
        self._newest: dict[str, int] = {}  # name -> highest number so far
        self._possible: set[bytes] = set()  # settled, not owed, and not received
        ledger.receivers.append(self)

    def _open(self, filter: str) -> Interval | None:
        for one in self._intervals:
            if one.filter == filter and not one.ended_at:
                return one
        return None

    @property
    def filters(self) -> list[str]:
        return [one.filter for one in self._intervals if not one.ended_at]

    # What the session says

    def asked(self, filter: str) -> None:
        if self._open(filter) is None:
            self._intervals.append(Interval(filter, self._ledger.moment))

    def granted(self, filter: str) -> None:
        interval = self._open(filter)
        if interval is not None and not interval.is_sure:
            interval.granted_at = self._ledger.moment
            interval.is_sure = True

    def end_asked(self, filter: str) -> None:
        interval = self._open(filter)
        if interval is not None:
            interval.is_sure = False
            self.owed = {m: None for m in self.owed if self._must(m)}

    def ended(self, filter: str) -> None:
        interval = self._open(filter)
        if interval is not None:
            interval.is_sure = False
            interval.ended_at = self._ledger.moment

    def doubted(self) -> None:
        """The session may have ended: nothing is owed, anything may still come."""
        self.owed.clear()
        for one in self._intervals:
            one.is_sure = False

    def forgotten(self) -> None:
        """The session has ended."""
        self.doubted()
        for one in self._intervals:
            one.ended_at = one.ended_at or self._ledger.moment

    # What is owed and what comes

    def _must(self, message: Message) -> bool:
        return any(
            one.is_sure and one.granted_at < message.sent_at and matches(one.filter, message.name)
            for one in self._intervals
        )

    def _may(self, message: Message) -> bool:
        return any(
            (not message.acked_at or one.asked_at < message.acked_at)
            and (not one.ended_at or message.sent_at < one.ended_at)
            and matches(one.filter, message.name)
            for one in self._intervals
        )

    def owe(self, message: Message) -> None:
        is_wanted = min(message.qos, self._qos) > 0 and not message.is_empty
        if is_wanted and message not in self._received and self._must(message):
            self.owed[message] = None

    def receive(self, who: str, name: str, payload: bytes, qos: int, is_retained: bool) -> None:
        complain = self._ledger.complain
        message = self._ledger.find(payload)
        what = f"{who} got {payload!r} of {name} at QoS {qos}"
        if message is None:
            if qos == 2 and not is_retained and payload not in self._possible:
                complain(f"{what}, which had come before and was settled")
            self._possible.discard(payload)
            return
        self.count += 1
        self.owed.pop(message, None)
        if name != message.name or qos != min(self._qos, message.qos):
            complain(f"{what}, sent as {message}")
        if is_retained:
            return  # at a subscribe; the settlement looks at those
        is_again = message in self._received
        self._received.add(message)
        could_be_stored_twice = message.qos == 1 and message.is_resent
        if is_again:
            if qos != 1 and not could_be_stored_twice:
                complain(f"{what}, more than once")
            return
        if not self._may(message):
            complain(f"{what}, which no subscription allows: {self._intervals}, {message}")
        if not self._is_group and not could_be_stored_twice:
            if message.number < self._newest.get(name, -1):
                complain(f"{what}, after {self._newest[name]}: out of order")
            self._newest[name] = message.number

    def complain_of_owed(self) -> None:
        if self.owed:
            self._ledger.complain(
                f"{self._title} (QoS {self._qos}) never got {len(self.owed)} messages:"
                f" {[*self.owed][:3]}; {self._intervals}"
            )

    def close(self, messages: list[Message]) -> None:
        """Forget these messages, but for those of QoS 2 that were not owed and may yet come."""
        is_strict = self._qos == 2
        self._possible |= {
            one.payload
            for one in messages
            if is_strict and one.qos == 2 and one not in self._received and self._may(one)
        }
        self._received.clear()
        self._intervals = [one for one in self._intervals if not one.ended_at]
