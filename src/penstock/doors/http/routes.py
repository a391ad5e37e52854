"""All that this door answers: each module adds its own routes."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.exchange import Exchange
from penstock.broker.publish.submissions import Submissions
from penstock.doors.http import home, mqtt, queue, status
from penstock.doors.http.door import HttpDoor
from penstock.doors.http.v1 import (
    bindings,
    consumers,
    groups,
    openapi,
    records,
    reloading,
    sessions,
    staging,
    streams,
    topics,
    users,
)
from penstock.doors.mqtt.door import MqttDoor


def add_all(
    door: HttpDoor, exchange: Exchange, mqtt_door: MqttDoor, reload: Callable[[], list[str]]
) -> None:
    submissions = Submissions(exchange.engine, exchange.authorise)
    status.add_routes(door, exchange, mqtt_door)
    mqtt.add_routes(door, mqtt_door)
    queue.add_routes(door, submissions)
    topics.add_routes(door)
    bindings.add_routes(door)
    records.add_routes(door, submissions, exchange.store)
    consumers.add_routes(door)
    groups.add_routes(door)
    streams.add_routes(door)
    sessions.add_routes(door, exchange)
    users.add_routes(door, exchange)
    staging.add_routes(door, exchange)
    reloading.add_routes(door, reload)
    home.add_routes(door)
    openapi.add_routes(door)
