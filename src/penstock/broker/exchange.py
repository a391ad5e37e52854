"""The exchange: the parts through which messages go between clients and logs, put together once.

Each part does one thing: the publisher stores, delivery hands on what is committed, sessions come
and go. Doors take the parts they need from here.
"""

from __future__ import annotations

from functools import partial

from penstock.broker.deliver.delivery import Delivery
from penstock.broker.deliver.history import Feeds
from penstock.broker.deliver.retained_delivery import RetainedDelivery
from penstock.broker.deliver.routes import Router
from penstock.broker.engine import Engine
from penstock.broker.publish.publisher import Publisher
from penstock.broker.session.registry import Sessions
from penstock.broker.session.store import SessionStore
from penstock.broker.share.delivery import Sharing
from penstock.broker.upkeep.upkeep import DELIVERY
from penstock.core.access import Authorise, authorise


class Exchange:
    """Made once for all doors."""

    def __init__(
        self,
        engine: Engine,
        store: SessionStore,
        authorise: Authorise = authorise,
        *,
        keeps_qos0: bool = False,
    ) -> None:
        on_trouble = partial(engine.upkeep.note_trouble, DELIVERY)
        self.engine = engine
        self.keeps_qos0 = keeps_qos0
        self.store = store
        self.authorise = authorise
        memory = engine.shared.route_memory
        self.router = Router(engine.topics, authorise, memory, keeps_qos0=keeps_qos0)
        self.publisher = Publisher(
            engine, self.router, store.inbound, store.retained, keeps_qos0=keeps_qos0
        )
        self.delivery = Delivery(engine, self.router, store.retained, keeps_qos0=keeps_qos0)
        self.feeds = Feeds(engine, authorise, self.router.may_subscribe, on_trouble)
        self.sharing = Sharing(
            *(engine, self.router, store.shares, on_trouble, keeps_qos0), dealing=store.dealing
        )
        self.sessions = Sessions(
            engine,
            store,
            self.router,
            feeds=self.feeds,
            sharing=self.sharing,
            on_trouble=on_trouble,
            keeps_qos0=keeps_qos0,
        )
        self.retained_delivery = RetainedDelivery(engine, store.retained, authorise, self.feeds)
        engine.access.on_tenant_change[engine.tenant].append(self._rules_changed)
        engine.upkeep.on_quota.append(self.router.rules_changed)
        engine.caches.by_name["routes"] = self.router
        engine.caches.by_name["retained"] = store.retained

    def _rules_changed(self) -> None:
        """Decisions that were remembered are asked for again; connections may be another's now."""
        for session in self.sessions.connected.values():
            outbox = session.outbox
            if outbox is not None:
                outbox.principal = outbox.principal.for_client(session.client_id)
        self.store.shares.refresh_principals()
        self.feeds.rules_changed()
        self.router.rules_changed()

    def close(self) -> None:
        """Nothing is delivered any more."""
        self.engine.access.on_tenant_change[self.engine.tenant].remove(self._rules_changed)
        self.engine.upkeep.on_quota.remove(self.router.rules_changed)
        self.router.close()
