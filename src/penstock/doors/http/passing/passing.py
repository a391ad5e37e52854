"""Passing requests on: whatever node a client asks, the node that can answer does.

One node at a time has the consumers, groups and idempotency keys of a topic. Another one passes a
request on to it, with who asks, signed (`seal.py`), and gives its answer back as it comes. While no
node has them, or the one that does cannot be connected to, a request waits for PLACE_S_MAX: nothing
of it was done. If the answer to one that was sent is lost, and it may not be repeated, the client
hears that nobody knows whether it was carried out (502).

Bounds: PASSED_MAX requests at a time; a body is held once, as it came; an answer is given back part
by part. A request that was passed on is never passed on again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from penstock.broker.cluster.node import Node
from penstock.broker.engine import Engine
from penstock.broker.queue.readers import ReaderPlace, Readers
from penstock.core.access import NOTHING, Principal
from penstock.doors.http.passing.peer import BadAnswer, Head, Peer
from penstock.doors.http.passing.seal import (
    SEAL,
    SIGNATURE,
    Seal,
    body_digest,
    passed_headers,
    read_seal,
    sign,
    target_of,
)
from penstock.doors.http.v1.reading import WAIT_S_MAX
from penstock.doors.http.wire.messages import (
    Answer,
    HttpError,
    Request,
    Response,
    Streamed,
    Writer,
)
from penstock.model.errors import OutcomeUnknown, UnavailableError
from penstock.model.limits import KIB
from penstock.model.record import TenantId
from penstock.model.will import Login

PASSED_MAX: Final = 4_000  # on their way at the same time; most of them wait for records
PLACE_S_MAX: Final = 8.0  # for a node that takes over
LOOK_S: Final = 0.2
ANSWER_S_MAX: Final = 30.0  # besides what the client itself may wait
WHOLE_BYTES_MAX: Final = 256 * KIB  # of a body that is read before it is given back
LEARN_S_MIN: Final = 1.0  # between two looks for users that are not known here
IDLE_MAX: Final = 32  # connections to a node that nobody uses
IDLE_S_MAX: Final = 20.0  # far less than the other node keeps them

EngineOf = Callable[[TenantId], Engine | None]

_BROKEN: Final = (OSError, EOFError, TimeoutError, BadAnswer)


class Passing:
    """Used on the event loop."""

    def __init__(self, node: Node, engine: Engine, tls: ssl.SSLContext) -> None:
        """`engine` is that of any tenant: it has the clock and the users."""
        self._node = node
        self._clock = engine.clock
        self._access = engine.access
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._learnt_s = -LEARN_S_MIN
        self._idle: dict[int, list[Peer]] = {}  # by incarnation
        self._busy: set[Peer] = set()
        node.on_live.append(self._keep)

    def close(self) -> None:
        for peer in [*self._busy, *[one for some in self._idle.values() for one in some]]:
            peer.close()
        self._idle.clear()

    def _keep(self, live: frozenset[int]) -> None:
        """Nodes that are no longer live answer nothing."""
        for inc in [inc for inc in self._idle if inc not in live]:
            for peer in self._idle.pop(inc):
                peer.close()
        for peer in self._busy:
            if peer.inc not in live:
                peer.close()

    # Requests that come from another node

    async def receive(self, request: Request, engine_of: EngineOf) -> Principal:
        """Who asks; an error unless a node has passed this request on to us.

        From now on it has the headers that the client sent. Its body is checked by `check_body`.
        """
        seal = read_seal(self._node.secret, request, self._node.inc, self._clock.now_us())
        engine = engine_of(TenantId(seal.about))
        if engine is None or seal.topics > _newest_topic(engine):
            await self._node.learn()
        principal = self._find(seal)
        if principal.grants is NOTHING and self._loop.time() - self._learnt_s > LEARN_S_MIN:
            self._learnt_s = self._loop.time()
            await self._node.learn()  # that user may have been added a moment ago
            principal = self._find(seal)
        request.headers = {
            name.encode(): text.encode("latin-1") for name, text in seal.headers.items()
        }
        request.client = seal.source
        request.expires_us = seal.expires_us
        request.passed = seal.body
        return principal

    def _find(self, seal: Seal) -> Principal:
        login = Login(seal.proof, seal.roles, seal.credential)
        return self._access.with_login(TenantId(seal.tenant), seal.user, login)

    # Requests of clients

    async def pass_on(self, request: Request, engine: Engine, readers: Readers) -> Answer | None:
        """What the node answers that has these readers; None: this one has them now."""
        if self._count >= PASSED_MAX:
            raise UnavailableError(
                f"{PASSED_MAX} requests wait for answers of other nodes: try again"
            )
        self._count += 1
        try:
            answer = await self._pass_on(request, readers, engine)
        except BaseException:
            self._count -= 1
            raise
        if not isinstance(answer, Streamed):
            self._count -= 1
        return answer

    async def _pass_on(self, request: Request, readers: Readers, engine: Engine) -> Answer | None:
        until_s = self._loop.time() + PLACE_S_MAX
        wait_s = ANSWER_S_MAX + (WAIT_S_MAX if request.route.ends_with_client else 0)
        # Reading changes nothing, and what has an idempotency key is stored once.
        may_repeat = request.route.is_safe or request.route.is_keyed
        is_lost = False
        while not readers.is_here:
            place, why = readers.place, readers.elsewhere
            if place is not None:
                try:
                    peer = await self._peer(place)
                except _BROKEN as failed:
                    why = _unreached(place, failed)
                else:
                    try:
                        answer = await self._ask(peer, place, request, engine, wait_s=wait_s)
                    except _BROKEN as failed:
                        why = _lost(place, failed)
                        if not may_repeat:
                            self._node.unreached()
                            raise OutcomeUnknown(why) from None
                        is_lost = not request.route.is_safe
                    else:
                        if answer is not None:
                            return answer
                        why = f"node {place.name!r} no longer serves consumers and groups"
                self._node.unreached()
            if self._loop.time() >= until_s:
                raise OutcomeUnknown(why) if is_lost else UnavailableError(why + ": try again")
            await readers.wait_moved(LOOK_S)
        return None

    async def _peer(self, place: ReaderPlace) -> Peer:
        """A connection to a node, which is busy from now on."""
        if not place.url:
            raise BadAnswer("it serves no HTTP there: set [node] http_listen or http_advertise")
        idle = self._idle.get(place.inc, [])
        now_s = self._loop.time()
        while idle:
            peer = idle.pop()
            if peer.is_usable and now_s - peer.idle_s < IDLE_S_MAX:
                break
            peer.close()
        else:
            peer = await Peer.connect(place.inc, place.url, self._tls)
        self._busy.add(peer)
        return peer

    def _let_go(self, peer: Peer) -> None:
        """Of a connection whose answer is whole, or that is broken."""
        self._busy.discard(peer)
        idle = self._idle.setdefault(peer.inc, [])
        if peer.is_usable and len(idle) < IDLE_MAX:
            peer.idle_s = self._loop.time()
            idle.append(peer)
        else:
            peer.close()

    async def _ask(
        self, peer: Peer, place: ReaderPlace, request: Request, engine: Engine, *, wait_s: float
    ) -> Answer | None:
        """The answer of a node; None if it has to be another one, and nothing was done."""
        is_whole = False
        try:
            async with asyncio.timeout(wait_s):
                head = await peer.ask(self._head(request, place, engine), request.body)
            if head.length is None or head.length > WHOLE_BYTES_MAX:
                is_whole = True  # what follows is up to the stream
                return self._stream(peer, head)
            body = await peer.read_whole(head.length)
            is_whole = True
        finally:
            if not is_whole:
                peer.close()
                self._let_go(peer)
        self._let_go(peer)
        if head.is_elsewhere:
            return None
        return Response(head.status, body, head.content_type, head.headers)

    def _head(self, request: Request, place: ReaderPlace, engine: Engine) -> bytes:
        principal = request.principal
        login = self._access.login_of(principal)
        seal = Seal(
            sender=self._node.inc,
            target=place.inc,
            at_us=self._clock.now_us(),
            tenant=principal.tenant,
            user=principal.user,
            proof=login.proof,
            roles=login.roles,
            credential=login.credential,
            expires_us=request.expires_us,
            source=request.source,
            about=engine.tenant,
            topics=_newest_topic(engine),
            headers=passed_headers(request),
            body=body_digest(request.body),
        )
        method = "GET" if request.method == "HEAD" else request.method
        target = target_of(request)
        shown, signature = sign(self._node.secret, method, target, seal)
        return b"\r\n".join(
            (
                f"{method} {target} HTTP/1.1".encode(),
                b"Host: " + place.url.partition("://")[2].encode(),
                b"Content-Length: %d" % len(request.body),
                SEAL + b": " + shown,
                SIGNATURE + b": " + signature,
                b"",
                b"",
            )
        )

    def _stream(self, peer: Peer, head: Head) -> Streamed:
        """An answer that is given back while it comes."""
        is_whole = False

        async def produce(writer: Writer) -> None:
            nonlocal is_whole
            try:
                await _relay(peer, head, writer)
                is_whole = True
            except _BROKEN as failed:
                raise UnavailableError(f"the answer of another node broke off: {failed}") from None

        def end() -> None:
            self._count -= 1
            if not is_whole:
                peer.close()
            self._let_go(peer)

        return Streamed(
            produce, head.content_type, head.headers, head.status, on_end=end, is_finite=True
        )


def check_body(request: Request) -> None:
    """HttpError 403 if a request that was passed on has another body than the one signed for."""
    if request.passed and request.passed != body_digest(request.body):
        raise HttpError(403, "the body of this request is not the one that a node passed on")


async def _relay(peer: Peer, head: Head, writer: Writer) -> None:
    if head.length is not None:
        await _relay_bytes(peer, head.length, writer)
        return
    while length := await peer.chunk_length():
        await _relay_bytes(peer, length, writer)
        await peer.end_chunk()
    await peer.end_chunk()


async def _relay_bytes(peer: Peer, left: int, writer: Writer) -> None:
    while left:
        part = await peer.read_part(left)
        left -= len(part)
        writer.write(part)
        await writer.wait_room()


def _newest_topic(engine: Engine) -> int:
    """Ids of topics increase; the newest one is the last that was taken over."""
    known = engine.topics.all()
    return known[-1].id if known else 0


def _unreached(place: ReaderPlace, failed: Exception) -> str:
    why = str(failed) or "it did not answer in time"
    return f"node {place.name!r}, which serves consumers and groups, cannot be reached: {why}"


def _lost(place: ReaderPlace, failed: Exception) -> str:
    why = str(failed) or "it took too long"
    return (
        f"the answer of node {place.name!r} was lost ({why}): it is not known whether the request "
        "was carried out"
    )
