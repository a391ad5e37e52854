"""All that this door answers: each module adds its own routes."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.publish.submissions import Submissions
from penstock.broker.tenants import Tenants
from penstock.doors.bridge.bridges import Bridges
from penstock.doors.http import home, mqtt, queue, status
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.v1 import (
    bridges,
    nodes,
    openapi,
    overview,
    pipelines,
    reloading,
    sessions,
    snapshots,
    traces,
)
from penstock.doors.http.v1.access import access, clients, me, tenants, users
from penstock.doors.http.v1.topics import (
    bindings,
    consumers,
    groups,
    records,
    retained,
    staging,
    streams,
    topics,
)
from penstock.doors.mqtt.door import MqttDoor


def add_all(
    mqtt_door: MqttDoor,
    all_tenants: Tenants,
    reload: Callable[[], list[str]],
    all_bridges: Bridges,
    door: Endpoints,
) -> None:
    exchange = door.world.exchange
    if exchange.engine.shared.node is not None:
        door.router.readers = exchange.engine.readers
    submissions = Submissions(exchange.engine, exchange.authorise, exchange.store.retained)
    status.add_routes(door, exchange, mqtt_door, all_bridges)
    mqtt.add_routes(door, mqtt_door)
    queue.add_routes(door, submissions)
    topics.add_routes(door)
    bindings.add_routes(door)
    records.add_routes(door, submissions, exchange.store)
    consumers.add_routes(door)
    groups.add_routes(door)
    streams.add_routes(door)
    sessions.add_routes(door, exchange)
    clients.add_routes(door, exchange)
    users.add_routes(door, exchange)
    access.add_routes(door)
    staging.add_routes(door, exchange)
    reloading.add_routes(door, reload)
    tenants.add_routes(door, all_tenants)
    snapshots.add_routes(door, all_tenants.snapshots)
    me.add_routes(door, mqtt_door)
    overview.add_routes(door)
    retained.add_routes(door, exchange.store.retained)
    pipelines.add_routes(door)
    traces.add_routes(door)
    bridges.add_routes(door, all_bridges)
    nodes.add_routes(door)
    home.add_routes(door)
    openapi.add_routes(door)
