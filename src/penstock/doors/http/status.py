"""What operators ask: is it alive, is it ready, what does it count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.broker.engine import Engine
from penstock.doors.http.door import HttpDoor
from penstock.doors.http.messages import TEXT, Request, Response, json_response
from penstock.doors.http.router import Route

METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"


def add_routes(door: HttpDoor) -> None:
    status = Status(door)
    for path, handler, is_open in (
        ("/healthz", status.health, True),
        ("/readyz", status.readiness, True),
        ("/metrics", status.metrics, False),
    ):
        door.router.add(Route("GET", path, handler, is_open))


class Status:
    def __init__(self, door: HttpDoor) -> None:
        self._door = door
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
        return Response(200, prometheus(self._engine.counters().items()), METRICS)


def refusals(engine: Engine) -> list[str]:
    """Why publishes are refused now."""
    found = [engine.upkeep.refusal] if engine.upkeep.refusal else []
    fenced = sum(1 for topic in engine.topics.all() if topic.log.fence)
    if fenced:
        found.append(f"{fenced} topics take no publishes: a sync failed or a file is damaged")
    return found


def prometheus(values: Iterable[tuple[str, float]]) -> bytes:
    """The text format, with the type of each family said once."""
    lines = []
    said = set()
    for name, value in values:
        family, kind = _family(name.partition("{")[0])
        if family not in said:
            said.add(family)
            lines.append(f"# TYPE {family} {kind}")
        lines.append(f"{name} {value:.17g}" if isinstance(value, float) else f"{name} {value}")
    return "\n".join(lines).encode() + b"\n"


def _family(name: str) -> tuple[str, str]:
    if name.endswith("_total"):
        return name, "counter"
    for ending in ("_bucket", "_sum", "_count"):
        if name.endswith(ending):
            return name.removesuffix(ending), "histogram"
    return name, "gauge"
