"""Closing the connection of a client because an operator wants it, at whatever node it is.

A node that does not have the client asks the one that does. Sessions that are to be deleted are
gone on return; a client that connected again meanwhile has a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from penstock.broker.cluster.node import FORGET, KICK, Node, short_name
from penstock.broker.exchange import Exchange
from penstock.broker.session.backlog import has_ended
from penstock.broker.world import World
from penstock.core.naming.names import quoted
from penstock.doors.mqtt.connection import Connection
from penstock.model.errors import UnavailableError
from penstock.model.record import TenantId
from penstock.mqtt.reasons import Reason

LEASES_MAX: Final = 4  # so long a session may take: its node may have to be found dead
LOOK_S: Final = 0.05
WHY: Final = "an administrator closed the connection"


async def kick(exchange: Exchange, client_id: str, *, is_forgotten: bool) -> bool | None:
    """Whether the client was connected; None if it is not known at all."""
    if kick_here(exchange, client_id, is_forgotten=is_forgotten):
        return True
    node = exchange.engine.shared.node
    if node is not None:
        return await _kick_on_nodes(exchange, node, client_id, is_forgotten=is_forgotten)
    if client_id not in exchange.store.stored:
        return None
    if is_forgotten:
        await exchange.store.forget(client_id)
    return False


def kick_here(exchange: Exchange, client_id: str, *, is_forgotten: bool) -> bool:
    """Close the connection of a client; False if it is not connected here."""
    session = exchange.sessions.connected.get(client_id)
    if session is None:
        return False
    if is_forgotten:
        session.expiry_s = 0  # it ends with its connection
    outbox = session.outbox
    if isinstance(outbox, Connection):
        outbox.end(Reason.ADMINISTRATIVE_ACTION, WHY)
    elif outbox is not None:
        outbox.close()
    return True


def kick_asked(
    worlds: Mapping[TenantId, World], tenant: TenantId, name: str, *, is_forgotten: bool
) -> None:
    """Another node asks for it; `name` is the client id as `short_name` makes it."""
    world = worlds.get(tenant)
    if world is None:
        return
    connected = world.exchange.sessions.connected
    for client_id in [name] if name in connected else list(connected):
        if short_name(client_id) == name:
            kick_here(world.exchange, client_id, is_forgotten=is_forgotten)
            return


async def _kick_on_nodes(
    exchange: Exchange, node: Node, client_id: str, *, is_forgotten: bool
) -> bool | None:
    engine, sessions = exchange.engine, exchange.engine.session_list
    first = (await sessions.find([client_id])).get(client_id)
    if first is None or has_ended(exchange, first):
        return None
    was_elsewhere = first.owner_inc not in (0, node.inc)
    if was_elsewhere:
        kind = FORGET if is_forgotten else KICK
        await node.ask(first.owner_inc, kind, engine.tenant, client_id)
    if not is_forgotten:
        return was_elsewhere
    loop = asyncio.get_running_loop()
    until_s = loop.time() + LEASES_MAX * node.lease_s
    while was_elsewhere:
        found = (await sessions.find([client_id])).get(client_id)
        if found is None or found.stored.incarnation != first.stored.incarnation:
            return True
        if found.owner_inc == 0:  # it went before its node was asked
            break
        if loop.time() >= until_s:
            raise UnavailableError(
                f"the node that has client {quoted(client_id)} has not ended its session: try again"
            )
        await asyncio.sleep(LOOK_S)
    await exchange.store.forget(client_id)
    return was_elsewhere
