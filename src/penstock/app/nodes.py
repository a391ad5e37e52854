"""A broker that joins others on the same Kafka and the same PostgreSQL."""

from __future__ import annotations

import threading
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.storage import keep_backends, open_store, owner_of
from penstock.broker.cluster.following import Following, learn_earlier_fences
from penstock.broker.cluster.node import Node
from penstock.broker.cluster.readers import ReaderDuty
from penstock.broker.cluster.recovery import Recovery
from penstock.broker.settings import BrokerSettings, NodeSettings
from penstock.broker.tenants import Tenants
from penstock.catalog.catalog import Catalog
from penstock.catalog.database.interface import Database
from penstock.catalog.database.thread import CatalogThread
from penstock.log.files.directory import KAFKA, POSTGRES, Backends
from penstock.model.errors import RefusedError
from penstock.model.timeline import Timeline
from penstock.model.version import VERSION

if TYPE_CHECKING:
    from penstock.catalog.cluster.joining import Joined
    from penstock.log.kafka.store import KafkaStore


class JoinedNode:
    """How the parts of a node are opened: its catalog first, which says who it is."""

    def __init__(
        self,
        path: Path,
        settings: BrokerSettings,
        clock: Timeline,
        giving_up: threading.Event,
        node: NodeSettings,
    ) -> None:
        self._path = path
        self._settings = settings
        self._clock = clock
        self._giving_up = giving_up
        self._node = node
        self._joined: Joined | None = None

    async def open(self, parts: AsyncExitStack) -> tuple[Catalog, KafkaStore, Node]:
        from penstock.catalog.cluster.heartbeat import Heartbeat
        from penstock.log.kafka.store import KafkaStore

        settings = self._settings
        runner = await CatalogThread.start(self._join)
        parts.push_async_callback(runner.close)
        joined = self._joined
        assert joined is not None, "the catalog is open"
        self._check_owner(joined.cluster_id)
        heartbeat = Heartbeat(
            settings.catalog_url,
            settings.catalog_schema,
            joined.inc,
            lease_s=self._node.lease_s,
            count_clients=lambda: node.count_clients(),
        )
        catalog = await Catalog.open(runner, self._clock, joined.inc)
        name = self._node.name or f"node-{joined.inc}"
        node = Node(
            *(joined.inc, name, settings.catalog_schema, heartbeat, catalog.cluster),
            secret=joined.secret,
        )
        heartbeat.start()
        parts.push_async_callback(heartbeat.close)
        store = await open_store(
            settings, self._clock, self._giving_up, joined.cluster_id, joined.inc
        )
        assert isinstance(store, KafkaStore), "the topics of nodes are in Kafka"
        parts.push_async_callback(store.close)
        store.before_following.append(partial(learn_earlier_fences, catalog.cluster))
        node.reaches_topics = store.answers
        node.is_in_doubt = lambda: store.is_in_doubt
        store.on_dead.append(lambda: node.end("other nodes have declared this node dead"))
        keep_backends(self._path, Backends(POSTGRES, KAFKA), joined.cluster_id)
        return catalog, store, node

    def _join(self) -> Database:
        """On the thread of the catalog."""
        from penstock.catalog.cluster.joining import join

        self._joined = join(
            self._settings.catalog_url,
            self._settings.catalog_schema,
            VERSION,
            self._clock,
            proposed_id=owner_of(self._path),
            node_name=self._node.name,
            giving_up=self._giving_up,
        )
        return self._joined.database

    def _check_owner(self, cluster_id: str) -> None:
        """A directory that began with other topics in Kafka is not taken for one of these nodes."""
        own = owner_of(self._path, "")
        if own and own != cluster_id:
            raise RefusedError(
                f"{self._path} belongs to other topics in Kafka than those of the catalog in "
                f"schema {self._settings.catalog_schema!r}: use another data directory for this "
                "node, or the [catalog] url and schema that this one began with"
            )


class NodeWork:
    """What a node does besides serving: follow the others, and recover those that die."""

    def __init__(self, following: Following, recovery: Recovery, duty: ReaderDuty) -> None:
        self._following = following
        self._recovery = recovery
        self._duty = duty

    async def close(self) -> None:
        await self._duty.close()
        await self._recovery.close()
        await self._following.close()


async def begin_following(node: Node, tenants: Tenants) -> NodeWork:
    """Once the topics are open: recover who died before, and know all fences before serving."""
    following = Following(node, tenants)
    node.on_behind.append(following.look)
    recovery = Recovery(node, tenants, following)
    following.start()
    await node.wait_settled()
    await following.look()
    duty = ReaderDuty(node, tenants)
    await duty.start()
    return NodeWork(following, recovery, duty)
