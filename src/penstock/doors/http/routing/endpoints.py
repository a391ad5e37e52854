"""What the HTTP door answers for one tenant: its routes, over its engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.access.audit import Audit, claimed_tenant
from penstock.broker.engine import Engine
from penstock.broker.topic.topics import Topic
from penstock.broker.world import World
from penstock.doors.http.limits import HttpLimits
from penstock.doors.http.lines import Lines
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route, Router
from penstock.doors.http.wire.messages import Asker, HttpError, Request
from penstock.doors.http.wire.room import Room
from penstock.doors.serving import Serving
from penstock.doors.strangers import Stranger
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.model.tenants import no_such_tenant

if TYPE_CHECKING:
    from penstock.doors.http.door import HttpDoor

TENANT_HEADER: Final = b"penstock-tenant"  # says which tenant an operator means


class Endpoints:
    """Modules add their routes here; paths and methods are the same for every tenant."""

    def __init__(self, door: HttpDoor, world: World) -> None:
        self.world = world
        self.engine = world.engine
        self.router = Router()
        self._door = door

    @property
    def will_stop(self) -> bool:
        """Everybody is still served, but load balancers are to send nobody any more."""
        return self._door.will_stop

    @property
    def is_stopping(self) -> bool:
        """Who waits for something is to be answered now."""
        return self._door.is_stopping

    def is_leaving(self, topic: Topic) -> bool:
        """The same for who reads as a consumer or in a group of a topic."""
        return self._door.is_stopping or self.engine.readers.of(topic.key).is_leaving

    @property
    def serving(self) -> Serving:
        return self._door.serving

    @property
    def limits(self) -> HttpLimits:
        return self._door.limits

    @property
    def room(self) -> Room:
        return self._door.room

    @property
    def lines(self) -> Lines:
        """Of streams; shared by all tenants, as they share their bound."""
        return self._door.lines

    @property
    def worlds(self) -> list[World]:
        """Those of all tenants, the default one first, then by name."""
        return self._door.tenants.worlds

    @property
    def connection_count(self) -> int:
        return self._door.connection_count

    def check_room(self) -> None:
        self._door.check_room()

    def stranger(self, asker: Asker) -> Stranger | None:
        return self._door.stranger(asker)

    async def wait(self, something: Awaitable[Any], wait_s: float | None) -> None:
        """Until it happens, the time is over, or the server stops; whatever is first."""
        await self._door.wait(something, wait_s)

    async def wait_leaving(self, topic: Topic, something: Awaitable[Any], wait_s: float) -> None:
        """As `wait`, or until another node is to serve the consumers and groups of the topic."""
        if self.engine.shared.node is not None:
            something = self.engine.readers.of(topic.key).until_leaving(something)
        await self._door.wait(something, wait_s)


Build = Callable[[Endpoints], None]  # adds all routes


class TenantEndpoints:
    """Those of all tenants, each made when it is first asked for."""

    def __init__(self, door: HttpDoor, build: Build) -> None:
        self._door = door
        self._build = build
        self._worlds: dict[TenantId, World] = {}
        self._made: dict[TenantId, Endpoints] = {}

    def add(self, world: World) -> None:
        """Answer users of a tenant from now on."""
        self._worlds[world.tenant] = world

    def end(self, tenant: TenantId) -> None:
        """A tenant is being removed: nobody is answered for it any more."""
        del self._worlds[tenant]
        self._made.pop(tenant, None)
        self._door.engine.access.edition += 1  # what connections remember is out of date

    @property
    def worlds(self) -> list[World]:
        first, *others = self._worlds.values()
        return [first, *sorted(others, key=lambda world: world.tenant)]

    def audit_of(self, login: str) -> Audit:
        """Where a refused login is recorded: in the tenant that it names, if there is one."""
        return self._worlds[claimed_tenant(login, self._worlds)].engine.audit

    def _audit_above(self, request: Request) -> Audit:
        """Where an act on a tenant is recorded: not in that one, which may be about to go."""
        principal = request.principal
        is_own = principal.is_operator and principal.tenant == request.params["tenant"]
        return self._worlds[DEFAULT_TENANT if is_own else principal.tenant].engine.audit

    def engine_of(self, tenant: TenantId) -> Engine | None:
        """None if there is no such tenant."""
        world = self._worlds.get(tenant)
        return None if world is None else world.engine

    def get(self, tenant: TenantId) -> Endpoints:
        found = self._made.get(tenant)
        if found is None:
            world = self._worlds.get(tenant)
            if world is None:
                raise HttpError(401, f"tenant {tenant!r} was removed")
            found = self._made[tenant] = Endpoints(self._door, world)
            self._build(found)
        return found

    def choose(self, request: Request, route: Route) -> tuple[Route, Audit]:
        """The same route over the engine of who asks, and where its acts are recorded.

        An operator may ask for another tenant.
        """
        tenant = request.principal.tenant
        asked = request.headers.get(TENANT_HEADER)
        if asked is not None and not route.is_open and asked != tenant.encode():
            if not request.principal.is_operator:
                raise HttpError(403, "only an operator may ask for another tenant")
            tenant = TenantId(asked.decode("latin-1"))
            if tenant not in self._worlds:
                raise HttpError(404, str(no_such_tenant(tenant)))
        endpoints = self.get(tenant)
        if tenant != DEFAULT_TENANT:
            route, _ = endpoints.router.find(request.method, request.path)
            request.route = route
        is_above = route.needs is Needs.OPERATOR and "tenant" in request.params
        return route, self._audit_above(request) if is_above else endpoints.engine.audit
