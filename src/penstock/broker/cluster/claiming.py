"""Claiming a session that another node has: that node is asked for it until it has released it.

A node that does not answer loses its lease; then who recovers it releases its sessions. One that
cannot reach Kafka does not know which messages of the session were stored, and cannot release it.
If this node reaches Kafka it asks that one to see whether it does, and to end if not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.broker.cluster.node import SESSION, TOPICS, Node
from penstock.catalog.session.sessions import MayHave, SessionElsewhere
from penstock.model.record import TenantId

LEASES_MAX: Final = 4  # so long a client waits: its node may have to be found dead and recovered
ASK_AGAIN_S: Final = 0.5
UNRELEASED_S: Final = 1.5  # after so long its node may not reach Kafka
LOOK_S: Final = 0.02  # how long a released session may stay unclaimed


@dataclass(frozen=True, slots=True)
class Arrival:
    """A client that connects to a node, as its session is looked for."""

    may_have: MayHave
    is_wanted: Callable[[], bool]  # False once its connection is gone, or a newer one came


class Claiming:
    """One attempt to get a session."""

    def __init__(self, node: Node, tenant: TenantId, client_id: str) -> None:
        self._node = node
        self._tenant = tenant
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + LEASES_MAX * node.lease_s
        self._ask_s = 0.0
        self._ask_topics_s = self._loop.time() + UNRELEASED_S

    async def wait(self, elsewhere: SessionElsewhere) -> None:
        """Suspends for a moment before the next attempt; raises it when there were enough."""
        now_s = self._loop.time()
        if now_s >= self._until_s:
            raise elsewhere
        if now_s >= self._ask_s:
            self._ask_s = now_s + ASK_AGAIN_S
            await self._node.ask(elsewhere.owner_inc, SESSION, self._tenant, self._client_id)
        if now_s >= self._ask_topics_s:
            self._ask_topics_s = now_s + self._node.lease_s
            if await self._node.reaches_topics(UNRELEASED_S):
                await self._node.ask(elsewhere.owner_inc, TOPICS, self._tenant, self._client_id)
        await asyncio.sleep(LOOK_S)
