"""The HTTP door: its listeners, its connections, and the way of a request to its handler.

Sockets are served by the DoorSelector, as MQTT's are. Every request is checked for where it comes
from and who sends it before its handler sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final

from penstock.broker.access.audit import Audit
from penstock.broker.limited_log import LimitedLog
from penstock.broker.queue.readers import Readers
from penstock.broker.world import World
from penstock.core.access import Principal
from penstock.core.proxies import NO_PROXIES, TrustedProxies
from penstock.doors.budget import Budget
from penstock.doors.descriptors import Descriptors
from penstock.doors.http.admitted import admit_alike
from penstock.doors.http.auditing import note_act, note_certificate, note_refusal
from penstock.doors.http.lasting import Lasting, Waits
from penstock.doors.http.limits import (
    BODIES_BYTES_MAX,
    CROWDED_S_MAX,
    DEFAULT_LIMITS,
    UNSENT_BYTES_MAX,
    HttpLimits,
)
from penstock.doors.http.lines import Lines
from penstock.doors.http.login import Credentials, log_in, recall
from penstock.doors.http.pages import Pages
from penstock.doors.http.passing.passing import Passing, check_body
from penstock.doors.http.passing.seal import SEAL
from penstock.doors.http.routing.calling import call, needs_topic, reply_failure
from penstock.doors.http.routing.endpoints import Build, TenantEndpoints
from penstock.doors.http.routing.errors import status_of
from penstock.doors.http.routing.router import Route
from penstock.doors.http.wire.bodies import BodyStream
from penstock.doors.http.wire.connection import HttpConnection
from penstock.doors.http.wire.messages import (
    Answer,
    Asker,
    HttpError,
    Pairs,
    Request,
    Response,
    Streamed,
    Upgrade,
    check_coding,
)
from penstock.doors.http.wire.room import Room
from penstock.doors.lingering import STOP_LINGER_S_MAX, Lingering
from penstock.doors.link import Link
from penstock.doors.listening import Listeners
from penstock.doors.selector import DoorSelector
from penstock.doors.serving import Serving
from penstock.doors.strangers import CROWDED, EVICTED, FULL, Stranger, Strangers
from penstock.doors.tls.context import TlsContext
from penstock.model.errors import (
    NotSubscribed,
    PenstockError,
    TopicNotFound,
    UnavailableError,
)

LOCAL_CONNECTIONS_MAX: Final = 64  # of commands; beside those of `connections_max`
# For clients that ask for `/healthz`, or are told that too many are there, when all others are
# taken by clients that logged in.
STRANGERS_ROOM_MIN: Final = 64


class HttpDoor:
    """Implements the connections' Host."""

    def __init__(
        self,
        world: World,
        build: Build,
        selector: DoorSelector,
        loop: asyncio.AbstractEventLoop,
        descriptors: Descriptors,
        limits: HttpLimits = DEFAULT_LIMITS,
        proxies: TrustedProxies = NO_PROXIES,
        *,
        strangers: Budget,
        passing: Passing | None = None,
    ) -> None:
        engine = self.engine = world.engine
        self.passing = passing
        self.lines = Lines()
        engine.shared.caches.by_name["stream_lines"] = self.lines
        self.tenants = TenantEndpoints(self, build)
        self.limits = limits
        self.budget, self.unsent = Budget(BODIES_BYTES_MAX), Budget(UNSENT_BYTES_MAX)
        self.strangers = strangers
        self.room = Room()  # for large answers
        self._is_relieving = False
        self.send_s_max = limits.send_s_max
        self.date = b""
        self.will_stop = self.is_stopping = False
        self._access = engine.access
        self._pages = Pages(limits.origins)
        self._loop = loop
        self._connections: set[HttpConnection] = set()
        self._lasting = Lasting()
        self._local: set[Asker] = set()  # those of them that came over the Unix socket
        self.serving = Serving(selector, loop)
        self._waits = Waits(loop)
        self._empty: asyncio.Event | None = None  # set when the last connection is gone
        self._lingering = Lingering(selector, loop, limits)
        self._log = LimitedLog("penstock.http", loop)
        self._strangers = Strangers(loop.time, on_evict=self._note_eviction)
        self._proxies = proxies
        self._unknown: dict[Asker, Stranger] = {}  # connections of which no client logged in
        self._listeners = Listeners(
            selector,
            loop,
            engine.metrics.refused,
            make=self.begin,
            serving=self.serving,
            lingering=self._lingering,
            log=self._log,
            descriptors=descriptors,
            may_use_reserve=True,
            proxies=proxies if limits.proxy_protocol else NO_PROXIES,
            note_certificate=partial(note_certificate, engine.audit),
        )
        descriptors.watch(self._strangers, self._lingering)
        self.tenants.add(world)
        self.router = self.tenants.get(world.tenant).router
        self._note_date()
        self._timer = loop.call_later(1.0, self._each_second)
        self._access.on_change.append(self._end_revoked)
        self._access.known.in_use.append(self._principals)

    # Connections

    def listen(
        self, host: str, port: int, context: TlsContext | None = None, *, is_shared: bool = False
    ) -> tuple[str, int]:
        """As `Listeners.listen`."""
        return self._listeners.listen(host, port, context, is_shared=is_shared)

    def listen_local(self, path: Path) -> None:
        """Take commands on a Unix socket: whoever can open it is an operator."""
        self._listeners.listen_local(path, self._begin_local)

    def _begin_local(self, link: Link) -> HttpConnection | None:
        if len(self._local) >= LOCAL_CONNECTIONS_MAX:
            self.engine.metrics.refused["connections"] += 1
            return None
        connection = HttpConnection(self, link)
        self._connections.add(connection)
        self._local.add(connection)
        return connection

    def begin(self, link: Link) -> HttpConnection | None:
        """A client on a link of any kind; None when there is no room for another."""
        source = link.source
        known = self._known_count
        room = max(STRANGERS_ROOM_MIN, self.limits.connections_max - known)
        if not self._strangers.has_room(source, room):
            is_full = known + len(self._strangers) >= self.limits.connections_max
            self.engine.metrics.refused["connections" if is_full else "strangers"] += 1
            text = FULL if is_full else CROWDED
            self._log.warning("connection refused", text, {"peer": link.peer})
            return None
        if self._log.tells_debug:
            text = "connection from %(peer)s opened"
            self._log.debug("connection opened", text, {"peer": link.peer})
        connection = HttpConnection(self, link)
        self._connections.add(connection)
        self._unknown[connection] = self._strangers.enter(source, connection.close)
        return connection

    @property
    def _known_count(self) -> int:
        """Connections of clients that logged in, and those that are over and linger."""
        count = len(self._connections) + len(self._lingering)
        return count - len(self._strangers) - len(self._local)

    def _know(self, asker: Asker) -> None:
        """Its client has logged in; UnavailableError if there is no room for another one."""
        self.check_room()
        self._unknown.pop(asker).leave()

    def check_room(self) -> None:
        """UnavailableError while as many clients are logged in as there may be."""
        if self._known_count >= self.limits.connections_max:
            self.engine.metrics.refused["connections"] += 1
            raise UnavailableError("connections_max clients are connected: try again")

    def stranger(self, asker: Asker) -> Stranger | None:
        """What a connection counts as until its client logs in."""
        return self._unknown.get(asker)

    def _note_eviction(self, network: str) -> None:
        self.engine.metrics.refused["strangers"] += 1
        self._log.warning("connection closed", EVICTED, {"network": network})

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def forget(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        self._local.discard(connection)
        self._lasting.forget(connection)
        stranger = self._unknown.pop(connection, None)
        if stranger is not None:
            stranger.leave()
        if not self._connections and self._empty is not None:
            self._empty.set()

    def relieve(self) -> None:
        if not self._is_relieving:
            self._is_relieving = True
            self._loop.call_soon(self._relieve)

    def _relieve(self) -> None:
        self._is_relieving = False
        while self._connections and self.unsent.bytes > self.unsent.bytes_max:
            largest = max(self._connections, key=lambda connection: connection.out_bytes)
            text = "connection from %(peer)s closed: it does not take its responses"
            self._log.warning("connection closed", text, {"peer": largest.peer})
            largest.close()

    # Requests

    def dispatch(self, request: Request) -> None:
        admitted = request.asker.admitted
        if admitted is not None and admitted.lets_in(request, self._access.edition):
            self._answer(request, request.route)
            return
        # Also if it was admitted before its body came: by now its user may be gone.
        self._find_asker(request, self._handle)

    def admit(self, request: Request) -> None:
        self._find_asker(request, self._read_on)

    def _find_asker(self, request: Request, go_on: Callable[[Request], None]) -> None:
        """Set route and principal, now or after a while, then go on; or answer with an error."""
        if request.passed or (self.passing is not None and SEAL in request.headers):
            self.serving.tasks.spawn(self._find_passed(request, go_on))
            return
        if self._proxies and b"forwarded" in request.headers:
            told = request.header(b"forwarded")
            request.client = self._proxies.client_of(request.asker.source, told)
        try:
            route = self._find_route(request)
            if route is None:
                request.reply(self._pages.options(request, self.router))
                return
            if not route.is_open:
                who = self._recall(request)
                if not isinstance(who, Principal):
                    self.serving.tasks.spawn(self._log_in(request, who, go_on))
                    return
                self._admit(request, who)
        except Exception as wrong:
            self._fail(request, wrong)
            return
        go_on(request)

    async def _find_passed(self, request: Request, go_on: Callable[[Request], None]) -> None:
        """As `_find_asker`, for a request that another node has passed on and signed."""
        try:
            if not request.passed:
                assert self.passing is not None, "only nodes pass requests on"
                self._admit(request, await self.passing.receive(request, self.tenants.engine_of))
                request.route, request.params = self.router.find(request.method, request.path)
        except Exception as wrong:
            self._fail(request, wrong)
            return
        go_on(request)

    def _admit(self, request: Request, who: Principal) -> None:
        if request.asker in self._unknown:
            self._know(request.asker)
        request.principal = who

    def _recall(self, request: Request) -> Principal | Credentials:
        """Who asks. A command over the Unix socket is an operator's, unless it logs in."""
        if request.asker in self._local and b"authorization" not in request.headers:
            return self._access.local()
        return recall(self._access, request)

    def _find_route(self, request: Request) -> Route | None:
        """The route of a request that may be asked from where it comes; None for OPTIONS."""
        route: Route | None = None
        try:
            if request.method != "OPTIONS":
                route, request.params = self.router.find(request.method, request.path)
                request.route = route
        finally:  # a page that may not ask is not told either which paths there are
            access, pages = self._access, self._pages
            is_trusting = not access.asks_login and not access.allow_anonymous
            pages.check_host(request, is_trusting=is_trusting)
            pages.check_origin(request)
            if route is not None and not route.is_safe:
                pages.check_site(request)
        if b"content-encoding" in request.headers:
            check_coding(request)
        return route

    async def _log_in(
        self, request: Request, credentials: Credentials, go_on: Callable[[Request], None]
    ) -> None:
        try:
            self._admit(request, await log_in(self._access, credentials, request.source))
        except Exception as wrong:
            self._fail(request, wrong)
        else:
            go_on(request)

    def _read_on(self, request: Request) -> None:
        request.is_admitted = True
        request.asker.admit(request)

    def _handle(self, request: Request) -> None:
        route: Route = request.route
        try:
            check_body(request)
            route, audit = self.tenants.choose(request, route)
            readers = None if self.passing is None else route.readers_for(request)
            if readers is not None and not readers.is_here and not request.passed:
                work = self._pass_on(request, route, audit, readers)
                request.task = self.serving.tasks.spawn(work)
                return
            if route.is_plain:
                request.asker.admitted = admit_alike(request, self._access.edition)
        except Exception as wrong:
            self._fail(request, wrong)
            return
        self._begin_work(request, route, audit)

    async def _pass_on(
        self, request: Request, route: Route, audit: Audit, readers: Readers
    ) -> None:
        """Have another node answer, unless this one can by now."""
        assert self.passing is not None
        try:
            engine = self.tenants.get(audit.tenant).engine
            answer = await self.passing.pass_on(request, engine, readers)
        except Exception as wrong:
            self._fail(request, wrong)
            return
        if answer is None:
            self._begin_work(request, route, audit)
        else:
            self._reply(request, answer)

    def _begin_work(self, request: Request, route: Route, audit: Audit) -> None:
        if route.is_administrative:
            self.serving.tasks.spawn(self._handle_audited(request, route, audit))
        else:
            self._answer(request, route)

    def _answer(self, request: Request, route: Route) -> None:
        try:
            answer = route.handler(request) if route.is_plain else call(request, route)
        except Exception as wrong:
            self._fail(request, wrong)
            return
        if answer is None:
            return
        if isinstance(answer, Response | Streamed | Upgrade):
            self._reply(request, answer)
        else:
            task = self.serving.tasks.spawn(self._finish(request, answer))
            if route.ends_with_client:
                request.task = task

    async def _handle_audited(self, request: Request, route: Route, audit: Audit) -> None:
        """As `_handle`; the answer leaves when the audit topic has what was done."""
        try:
            answer = call(request, route)
            if not isinstance(answer, Response | Streamed | Upgrade | None):
                answer = await answer
        except Exception as wrong:
            await note_act(audit, request, status_of(wrong), str(wrong))
            self._fail(request, wrong)
            return
        assert isinstance(answer, Response), "an administrative act is answered at once"
        await note_act(audit, request, answer.status, "")
        request.reply(answer)

    async def _finish(self, request: Request, work: Coroutine[Any, Any, Answer]) -> None:
        try:
            self._reply(request, await work)
        except Exception as wrong:
            self._fail(request, wrong)

    def _reply(self, request: Request, answer: Answer) -> None:
        request.reply(answer)
        if not isinstance(answer, Response):
            self._lasting.add(request)

    def _under_way(self) -> list[Request]:
        return [one.current for one in self._connections if one.current is not None]

    def _principals(self) -> list[Principal]:
        """Those of requests under way, and of what goes on after its answer."""
        return [one.principal for one in self._under_way()] + self._lasting.principals()

    def _end_revoked(self, concerned: set[Principal]) -> None:
        if any(one.is_revoked for one in concerned):
            self._lasting.end_revoked(self._under_way())

    def _fail(self, request: Request, wrong: Exception) -> None:
        """Answer with what went wrong; an internal error affects only this client."""
        if not isinstance(wrong, PenstockError):
            self.serving.report(f"{request.method} {request.path} failed", wrong)
        elif isinstance(wrong, HttpError):
            note_refusal(self.tenants, self._log, request, wrong)
        elif isinstance(wrong, UnavailableError | NotSubscribed) and needs_topic(request):
            try:
                engine = self.tenants.get(request.principal.tenant).engine
                engine.topics.find(request.params["topic"])
            except TopicNotFound as gone:  # deleted while the request was under way
                wrong = gone
        reply_failure(request, wrong)

    def note_violation(self, protocol: str, peer: str, problem: str) -> None:
        self.engine.metrics.violations[protocol] += 1
        values = {"protocol": protocol, "peer": peer, "problem": problem}
        text = "client from %(peer)s broke a rule of %(protocol)s: %(problem)s"
        self._log.warning("protocol violation", text, values)

    def shared_headers(self, request: Request) -> Pairs:
        return self._pages.headers(request)

    def produce(self, stream: BodyStream) -> asyncio.Task[None]:
        return self.serving.tasks.spawn(self._produce(stream))

    async def _produce(self, stream: BodyStream) -> None:
        is_whole = False
        try:
            await stream.answer.produce(stream)
            is_whole = True
        except asyncio.CancelledError:
            is_whole = self.is_stopping and not stream.answer.is_finite
        except Exception as wrong:
            if not isinstance(wrong, PenstockError):
                self.serving.report("a stream broke off", wrong)
        stream.end(is_whole=is_whole)

    async def wait(self, something: Awaitable[Any], wait_s: float | None) -> None:
        """As `Waits.wait`."""
        await self._waits.wait(something, wait_s)

    # Time

    def _each_second(self) -> None:
        self._timer = self._loop.call_later(1.0, self._each_second)
        self.serving.tick += 1
        self.room.look_at_time()
        is_crowded = self.room.is_crowded
        self.send_s_max = min(self.limits.send_s_max, CROWDED_S_MAX if is_crowded else inf)
        self._note_date()
        self._lasting.end_expired(self.engine.clock.now_us(), self._under_way())
        for connection in list(self._connections):
            try:
                connection.look_at_time()
            except Exception as mistake:
                self.serving.give_up(connection, mistake)

    def _note_date(self) -> None:
        now_s = self.engine.clock.now_us() / 1_000_000
        self.date = f"Date: {formatdate(now_s, usegmt=True)}\r\n".encode()

    async def close(self) -> None:
        """Stop listening, finish the requests under way, close what is idle or takes too long."""
        self._listeners.close()
        self.is_stopping = self._lingering.is_stopping = True
        self._waits.stop()
        for connection in list(self._connections):
            connection.stop()
        if self._connections:
            self._empty = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), self.limits.stop_s_max)
        self._timer.cancel()
        self._access.on_change.remove(self._end_revoked)
        for connection in list(self._connections):
            connection.close()
        if self.passing is not None:
            self.passing.close()
        await self._lingering.close(STOP_LINGER_S_MAX)
        self.serving.tasks.cancel()
        await self.serving.tasks.wait_done()
        self._log.close()
