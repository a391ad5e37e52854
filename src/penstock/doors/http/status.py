"""What operators ask: is it alive, is it ready, what does it count."""

from __future__ import annotations

from typing import Final

from penstock.broker.engine import Engine
from penstock.broker.exchange import Exchange
from penstock.broker.gauges import measure
from penstock.broker.metrics import FAMILIES
from penstock.doors.http.endpoints import Endpoints
from penstock.doors.http.limits import ADMIN, LOGIN, OPEN
from penstock.doors.http.messages import TEXT, Request, Response, json_response
from penstock.doors.http.needs import Needs
from penstock.doors.http.router import Route
from penstock.doors.mqtt.door import MqttDoor

METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
_METRICS_NEED: Final = {LOGIN: Needs.LOGIN, ADMIN: Needs.ADMIN, OPEN: None}


def add_routes(door: Endpoints, exchange: Exchange, mqtt: MqttDoor) -> None:
    status = Status(door, exchange, mqtt)
    for path, handler, needs in (
        ("/healthz", status.health, None),
        ("/readyz", status.readiness, None),
        ("/metrics", status.metrics, _METRICS_NEED[door.limits.metrics]),
    ):
        door.router.add(Route("GET", path, handler, is_open=needs is None, needs=needs))


class Status:
    def __init__(self, door: Endpoints, exchange: Exchange, mqtt: MqttDoor) -> None:
        self._door = door
        self._exchange = exchange
        self._mqtt = mqtt
        self._engine = door.engine

    def health(self, request: Request) -> Response:
        """The process answers."""
        return Response(200, b"ok\n", TEXT)

    def readiness(self, request: Request) -> Response:
        """It takes publishes, or says why not. Names no topic: anybody may ask."""
        reasons = refusals(self._engine)
        if self._door.is_stopping:
            reasons.append("the server stops")
        is_ready = not reasons
        return json_response({"ready": is_ready, "reasons": reasons}, 200 if is_ready else 503)

    def metrics(self, request: Request) -> Response:
        values = self._engine.counters() | measure(self._exchange)
        for name, door in (("mqtt", self._mqtt), ("http", self._door)):
            values[f'penstock_open_connections{{door="{name}"}}'] = door.connection_count
        return Response(200, prometheus(values), METRICS)


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
