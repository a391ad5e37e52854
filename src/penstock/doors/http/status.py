"""What operators ask: is it alive, is it ready, what does it count."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from penstock.broker.engine import Engine
from penstock.broker.exchange import Exchange
from penstock.broker.figures.gauges import OTHERS, measure, measure_process, measure_topics
from penstock.broker.figures.metrics import FAMILIES
from penstock.doors.bridge.bridges import Bridges
from penstock.doors.http.limits import ADMIN, LOGIN, OPEN
from penstock.doors.http.routing.endpoints import TENANT_HEADER, Endpoints
from penstock.doors.http.routing.needs import Needs, may_see
from penstock.doors.http.routing.router import Route
from penstock.doors.http.wire.messages import TEXT, Request, Response, json_response
from penstock.doors.mqtt.door import MqttDoor

TENANTS_MAX: Final = 100  # shown one by one: each has about a hundred lines
_LARGEST: Final = ("penstock_longest_lag_records",)  # not a sum
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
_METRICS_NEED: Final = {LOGIN: Needs.LOGIN, ADMIN: Needs.ADMIN, OPEN: None}


def add_routes(door: Endpoints, exchange: Exchange, mqtt: MqttDoor, bridges: Bridges) -> None:
    status = Status(door, exchange, mqtt, bridges)
    for path, handler, needs in (
        ("/healthz", status.health, None),
        ("/readyz", status.readiness, None),
        ("/metrics", status.metrics, _METRICS_NEED[door.limits.metrics]),
    ):
        door.router.add(Route("GET", path, handler, is_open=needs is None, needs=needs))


class Status:
    def __init__(
        self, door: Endpoints, exchange: Exchange, mqtt: MqttDoor, bridges: Bridges
    ) -> None:
        self._door = door
        self._bridges = bridges
        self._exchange = exchange
        self._mqtt = mqtt
        self._engine = door.engine

    def health(self, request: Request) -> Response:
        """The process answers."""
        return Response(200, b"ok\n", TEXT)

    def readiness(self, request: Request) -> Response:
        """It takes publishes, or says why not. Names no topic: anybody may ask."""
        reasons = refusals(self._engine)
        if self._door.will_stop or self._door.is_stopping:
            reasons.append("the server stops")
        node = self._engine.shared.node
        if node is not None and node.is_draining:
            reasons.append("this node sends its clients to others (penstock node drain)")
        is_ready = not reasons
        return json_response({"ready": is_ready, "reasons": reasons}, 200 if is_ready else 503)

    def metrics(self, request: Request) -> Response:
        """Of the tenant of who asks; an operator who names none gets those of all tenants."""
        values = measure_process(self._engine)
        worlds = self._door.worlds
        is_of_all = request.principal.is_operator and TENANT_HEADER not in request.headers
        if is_of_all and len(worlds) > 1:
            values |= by_tenant(
                {world.tenant: self._counted(world.exchange, request) for world in worlds}
            )
        else:
            values |= self._counted(self._exchange, request)
        values["penstock_loop_lag_seconds"] = self._door.world.samples.loop_lag_s
        for name, door in (("mqtt", self._mqtt), ("http", self._door)):
            values[f'penstock_open_connections{{door="{name}"}}'] = door.connection_count
        return Response(200, prometheus(values), METRICS)

    def _counted(self, exchange: Exchange, request: Request) -> dict[str, float]:
        engine = exchange.engine
        topics = measure_topics(engine, partial(may_see, request.principal))
        values = engine.counters() | measure(exchange) | topics
        return values | self._bridges.export(engine.tenant)


def by_tenant(counted: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """The values of several tenants, with the tenant as a label; the last of very many together."""
    values: dict[str, float] = {}
    for number, (tenant, own) in enumerate(counted.items()):
        label = tenant if number < TENANTS_MAX else OTHERS
        for name, value in own.items():
            base, _, labels = name.partition("{")
            key = f'{base}{{tenant="{label}"' + (f",{labels}" if labels else "}")
            held = values.get(key, 0)
            values[key] = max(held, value) if base in _LARGEST else held + value
    return values


def refusals(engine: Engine) -> list[str]:
    """Why publishes are refused now."""
    found = [engine.upkeep.refusal] if engine.upkeep.refusal else []
    fenced = sum(1 for topic in engine.topics.all() if topic.log.fence)
    if fenced:
        found.append(f"{fenced} topics reject publishes: a sync failed or a file is damaged")
    return found


def prometheus(values: dict[str, float]) -> bytes:
    """The text format: each family with its help and type, its values together."""
    families: dict[str, list[str]] = {}
    for name, value in values.items():
        shown = f"{value:.17g}" if isinstance(value, float) else f"{value:d}"
        families.setdefault(family_of(name), []).append(f"{name} {shown}")
    lines = []
    for family, samples in families.items():
        kind, says = FAMILIES[family]
        lines += [f"# HELP {family} {says}", f"# TYPE {family} {kind}", *samples]
    return "\n".join(lines).encode() + b"\n"


def family_of(name: str) -> str:
    """The metric that a sample belongs to."""
    base = name.partition("{")[0]
    if base in FAMILIES:
        return base
    return base.rpartition("_")[0]  # of a histogram: _bucket, _sum, _count
