"""`/v1/me`: who asks, which role decides what a page offers, and where MQTT is spoken."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.v1.describing import Facts
from penstock.doors.http.v1.reading import check_query
from penstock.doors.http.wire.messages import Request, Response, json_response
from penstock.doors.mqtt.door import MqttDoor

ME: Final = "/v1/me"


class Me(Struct):
    """`user` is empty for an anonymous client. A port is null if nobody listens there."""

    user: str
    tenant: str
    is_admin: bool
    is_operator: bool
    mqtt_port: int | None = None
    mqtts_port: int | None = None


def add_routes(door: Endpoints, mqtt_door: MqttDoor) -> None:
    said = "say who asks: user, tenant and whether it is an administrator; and the ports of MQTT"

    def show(request: Request) -> Response:
        check_query(request)
        principal = request.principal
        me = Me(principal.user, principal.tenant, principal.grants.is_admin, principal.is_operator)
        me.mqtt_port = mqtt_door.ports.get("mqtt")
        me.mqtts_port = mqtt_door.ports.get("mqtts")
        return json_response(me)

    door.router.add(Route("GET", ME, show, facts=Facts(said, Me), needs=Needs.LOGIN))
