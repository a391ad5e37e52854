"""A tenant with all that doors need of it: its engine, sessions, routes and wills."""

from __future__ import annotations

from penstock.broker.engine import Engine
from penstock.broker.exchange import Exchange
from penstock.broker.figures.overview import Samples
from penstock.broker.session.store import SessionStore
from penstock.broker.session.wills import Wills
from penstock.broker.settings import topic_settings
from penstock.broker.trace.tracer import Tracer
from penstock.core.naming.placement import DEFAULT_TOPIC


class World:
    """Made by `open`. The engine is opened before it and closed after it."""

    def __init__(self, engine: Engine, exchange: Exchange, wills: Wills) -> None:
        self.tenant = engine.tenant
        self.engine = engine
        self.exchange = exchange
        self.wills = wills
        self.samples = Samples(exchange)  # of the last hour
        self.samples.start()
        self.tracer = Tracer(exchange)

    @classmethod
    async def open(cls, engine: Engine, *, keeps_qos0: bool, will_grace_s: float) -> World:
        """Take over the sessions and wills that an earlier life left."""
        store = SessionStore(engine, engine.session_catalog)
        await store.open()
        exchange = Exchange(engine, store, keeps_qos0=keeps_qos0)
        if store.stored or await engine.will_catalog.held():
            # Clients were here before. Where none was, the first one brings this topic.
            settings = topic_settings(engine.settings, {})
            await engine.topics.create(DEFAULT_TOPIC, settings, exist_ok=True)
        wills = Wills(exchange, engine.will_catalog, engine.clock, will_grace_s)
        await wills.open()
        return cls(engine, exchange, wills)

    async def close(self) -> None:
        """After its clients are gone: save what they leave."""
        self.samples.stop()
        self.tracer.close()
        await self.wills.close()
        await self.exchange.store.close()
        self.exchange.close()
