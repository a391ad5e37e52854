"""What the broker says about itself: `$SYS/broker/…`, under the names that Mosquitto made known.

The values are read off counters every few seconds, and when somebody subscribes; those of clients
and subscriptions also within a second of a change. Nothing is counted for them alone. They are in
no log. Who subscribes is given the current ones at once, like retained messages, and with them the
states of bridges; changed values follow at QoS 0 while the connection has room.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Final

from penstock.broker.deliver.routes import forward
from penstock.broker.exchange import Exchange
from penstock.broker.figures.gauges import resident_bytes
from penstock.broker.session.session import Subscription
from penstock.core.access import RECEIVE
from penstock.core.averages import MINUTES, Averages
from penstock.core.delivery.run import Run, record_flags
from penstock.core.naming.names import first_level, matches
from penstock.model.limits import KIB

ROOT: Final = "$SYS"
PREFIX: Final = "$SYS/broker/"


def is_own(filter: str) -> bool:
    """Can this filter match what the broker says about itself? No wildcard stands for `$SYS`."""
    return first_level(filter) == ROOT


class DollarSys:
    """Runs from `start` to `close`; without an interval there is nothing to say."""

    def __init__(
        self, exchange: Exchange, loop: asyncio.AbstractEventLoop, interval_s: int, version: str
    ) -> None:
        self._exchange = exchange
        self._loop = loop
        self._interval_s = interval_s
        self._version = version
        self._values: dict[str, bytes] = {}
        self._loads: dict[str, Averages] = {}
        self._started_s = self._updated_s = exchange.engine.clock.monotonic_s()
        self._timer: asyncio.TimerHandle | None = None
        self._seen: tuple[int, ...] = ()  # what `each_second` saw last
        if interval_s:
            self._update()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def greet(self, subscription: Subscription) -> None:
        """The current values for a new subscriber, as retained messages."""
        outbox = subscription.session.outbox
        if outbox is None or not is_own(subscription.filter):
            return
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        encoding = outbox.encoding(0, True, identifiers)
        for name, value in (self._values | self._exchange.publisher.states.values).items():
            if matches(subscription.filter, name) and self._exchange.authorise(
                outbox.principal, RECEIVE, name, ""
            ):
                run = _run(name, value)
                outbox.forward(name, 1, encoding.forward_bytes(run))

    def refresh(self) -> None:
        """Somebody subscribes: what is told is true now. Averages wait for their turn."""
        if self._interval_s:
            self._tell(self._holdings() | self._totals())

    def each_second(self) -> None:
        """Clients or subscriptions that come and go are told soon; the rest at its interval."""
        exchange = self._exchange
        store = exchange.store
        seen = (
            exchange.engine.metrics.traffic.connects,
            len(exchange.sessions.connected),
            exchange.sessions.subscription_count,
            len(store.stored),
            len(store.shares),
            len(store.retained),
        )
        if self._interval_s and seen != self._seen:
            self._seen = seen
            self._tell(self._holdings())

    def _update(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._update)
        self._tell(self._holdings() | self._totals() | self._load_texts())

    def _tell(self, texts: dict[str, str]) -> None:
        """Keep what changed, and forward it to those who are subscribed."""
        for short, text in texts.items():
            name, value = PREFIX + short, text.encode()
            if self._values.get(name) == value:
                continue
            self._values[name] = value
            if self._exchange.sessions.connected:
                forward(self._exchange.router.find(name).lanes, _run(name, value))

    def _holdings(self) -> dict[str, str]:
        """What is there now: clients, subscriptions, retained messages."""
        exchange = self._exchange
        traffic = exchange.engine.metrics.traffic
        connected = len(exchange.sessions.connected)
        disconnected = exchange.sessions.away_count
        counts = {
            "clients/connected": connected,
            "clients/active": connected,
            "clients/disconnected": disconnected,
            "clients/inactive": disconnected,
            "clients/total": connected + disconnected,
            "clients/maximum": traffic.clients_max,
            "clients/expired": traffic.sessions_expired,
            "subscriptions/count": exchange.sessions.subscription_count,
            "shared_subscriptions/count": len(exchange.store.shares),
            "retained messages/count": len(exchange.store.retained),
        }
        return {name: str(count) for name, count in counts.items()}

    def _totals(self) -> dict[str, str]:
        engine = self._exchange.engine
        traffic = engine.metrics.traffic
        stored = sum(topic.log.count_from(0) for topic in engine.topics.all())
        uptime_s = int(engine.clock.monotonic_s() - self._started_s)
        counts = {
            "messages/received": traffic.packets_received,
            "messages/sent": traffic.packets_sent,
            "messages/stored": stored,
            "store/messages/count": stored,
            "publish/messages/received": traffic.publishes_received,
            "publish/messages/sent": traffic.publishes_sent,
            "publish/messages/dropped": sum(engine.metrics.dropped.values()),
            "publish/bytes/received": traffic.publish_bytes_received,
            "publish/bytes/sent": traffic.publish_bytes_sent,
            "bytes/received": traffic.bytes_received,
            "bytes/sent": traffic.bytes_sent,
            "heap/current": resident_bytes(),
            "heap/maximum": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
        }
        texts = {name: str(count) for name, count in counts.items()}
        return texts | {"version": self._version, "uptime": f"{uptime_s} seconds"}

    def _load_texts(self) -> dict[str, str]:
        metrics = self._exchange.engine.metrics
        traffic = metrics.traffic
        totals = {
            "messages/received": traffic.packets_received,
            "messages/sent": traffic.packets_sent,
            "publish/received": traffic.publishes_received,
            "publish/sent": traffic.publishes_sent,
            "publish/dropped": sum(metrics.dropped.values()),
            "bytes/received": traffic.bytes_received,
            "bytes/sent": traffic.bytes_sent,
            "sockets": traffic.sockets,
            "connections": traffic.connects,
        }
        now_s = self._exchange.engine.clock.monotonic_s()
        elapsed_s, self._updated_s = now_s - self._updated_s, now_s
        texts: dict[str, str] = {}
        for name, total in totals.items():
            load = self._loads.setdefault(name, Averages())
            load.update(total, elapsed_s)
            for minutes, value in zip(MINUTES, load.per_minute, strict=True):
                texts[f"load/{name}/{minutes}min"] = f"{value:.2f}"
        return texts


def _run(name: str, value: bytes) -> Run:
    return Run(name, value, [0], [len(value)], record_flags(0, True))
