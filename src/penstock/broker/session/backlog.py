"""Reports on sessions: who is connected, what is out to each, and what it has waiting."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.exchange import Exchange
from penstock.broker.session.rows import tag_of
from penstock.broker.session.session import Session, Subscription
from penstock.broker.session.waiting import Reader, Wish, count_waiting
from penstock.catalog.session.session_list import SessionRow
from penstock.catalog.session.stored_sessions import NO_PACKET_ID, SubscriptionRow
from penstock.core.naming.names import SHARE_PREFIX
from penstock.core.where import compile_where


@dataclass(frozen=True, slots=True)
class SessionReport:
    """A session, as an operator sees it."""

    client_id: str
    user: str
    is_connected: bool
    expiry_s: int
    filters: list[tuple[str, int]]  # with their QoS
    outstanding: int  # sent and not acknowledged
    readers: list[Reader]  # its own position, and those of its feeds

    @property
    def waiting(self) -> int:
        """Messages it has not been sent; what waits for a share is nobody's yet."""
        return sum(reader.waiting for reader in self.readers)

    @property
    def is_exact(self) -> bool:
        return all(reader.is_exact for reader in self.readers)


async def known_clients(exchange: Exchange, limit: int, after: str = "") -> list[str]:
    """Those that are connected or have a session, behind a client id; as a node, at any node."""
    if exchange.engine.shared.node is not None:
        return await exchange.engine.session_list.page(limit, after)
    known = sorted(set(exchange.sessions.connected) | set(exchange.store.stored))
    return [one for one in known if one > after][:limit]


async def describe_sessions(exchange: Exchange, client_ids: list[str]) -> list[SessionReport]:
    """In the order asked for, with what waits for each; those that are not there are left out."""
    engine = exchange.engine
    reports = await find_sessions(exchange, client_ids)
    readers = [reader for report in reports for reader in report.readers]
    for topic in engine.topics.all():
        await count_waiting(topic, readers, engine.clock)
    return reports


async def find_sessions(exchange: Exchange, client_ids: list[str]) -> list[SessionReport]:
    """The same without looking for what waits."""
    engine = exchange.engine
    connected = exchange.sessions.connected
    rows = await engine.session_list.find([one for one in client_ids if one not in connected])
    reports = []
    for client_id in client_ids:
        session = connected.get(client_id)
        if session is not None:
            is_kept = exchange.keeps_qos0 and session.vault is not None
            reports.append(_of_session(session, keeps_qos0=is_kept))
        elif client_id in rows and not has_ended(exchange, rows[client_id]):
            reports.append(await _of_row(exchange, rows[client_id]))
    return reports


def has_ended(exchange: Exchange, row: SessionRow) -> bool:
    """As a node: the session ended here, and will be removed from the catalog in a moment."""
    node = exchange.engine.shared.node
    is_ours = node is not None and row.owner_inc == node.inc
    return is_ours and row.stored.client_id not in exchange.store.stored


def _of_session(session: Session, *, keeps_qos0: bool) -> SessionReport:
    client_id, subscriptions = session.client_id, session.subscriptions.values()
    plain = [
        Wish(one.filter, one.qos, one.since, one.no_local, one.owed)
        for one in subscriptions
        if one.is_plain
    ]
    lags, out = dict(session.lags), session.resent
    readers = [Reader(client_id, lags, plain, out, keeps_qos0=keeps_qos0)]
    readers += [
        Reader(
            client_id=client_id,
            positions=dict(feed.lags),
            wishes=[_wish_of_feed(feed.subscription)],
            out=session.resent,
            feed_id=feed.id,
            where=feed.where,
            keeps_qos0=True,
        )
        for feed in session.feeds
    ]
    outbox = session.outbox
    return SessionReport(
        client_id=client_id,
        user=outbox.principal.user if outbox is not None else "",
        is_connected=True,
        expiry_s=session.expiry_s,
        filters=[(one.filter, one.qos) for one in subscriptions],
        outstanding=session.window.count - len(session.released or ()),
        readers=readers,
    )


async def _of_row(exchange: Exchange, row: SessionRow) -> SessionReport:
    store, stored = exchange.store, row.stored
    client_id = stored.client_id
    out = {tag_of(one) for one in stored.outstanding}
    plain = [
        Wish(one.filter, one.qos, one.since, one.no_local)
        for one in stored.subscriptions
        if not one.feed_id and not one.filter.startswith(SHARE_PREFIX)
    ]
    positions = await store.offsets(stored)
    if row.is_connected:  # it is coming or going: without a position it is level
        positions = {one: positions[one] for one in stored.positions if one in positions}
    readers = [Reader(client_id, positions, plain, out, keeps_qos0=exchange.keeps_qos0)]
    for one in stored.subscriptions:
        if one.feed_id:
            readers.append(
                Reader(
                    client_id=client_id,
                    positions=await store.feed_offsets(stored, one.feed_id),
                    wishes=[_wish_of_feed(one)],
                    out=out,
                    feed_id=one.feed_id,
                    where=compile_where(one.expression) if one.expression else None,
                    keeps_qos0=True,
                )
            )
    pins = [pin for _, _, pin in store.shares.pinned(client_id) if not pin.is_released]
    elsewhere = [pin for pin in stored.pins if not pin.row.is_released]  # as a node
    sent = [one for one in stored.outstanding if one.packet_id != NO_PACKET_ID]
    node = exchange.engine.shared.node
    return SessionReport(
        client_id=client_id,
        user=row.owner,
        is_connected=node is not None and row.owner_inc not in (0, node.inc),
        expiry_s=stored.expiry_s,
        filters=[(one.filter, one.qos) for one in stored.subscriptions],
        outstanding=len([one for one in sent if not one.is_released]) + len(pins) + len(elsewhere),
        readers=readers,
    )


def _wish_of_feed(one: Subscription | SubscriptionRow) -> Wish:
    """It counts from the position of its feed on."""
    return Wish(one.filter, one.qos, {}, one.no_local)
