"""What a CONNECT says of a will: read, and refused where a publish would be."""

from __future__ import annotations

from penstock.broker.exchange import Exchange
from penstock.broker.states import is_state_of
from penstock.core.access import PUBLISH, Principal
from penstock.core.naming.names import quoted
from penstock.doors.mqtt.encoding import stored_headers
from penstock.model.limits import HEADERS_BYTES_MAX, NAME_LEVELS_MAX
from penstock.model.will import Will
from penstock.mqtt.packets import Will as Wanted
from penstock.mqtt.reasons import Reason


def read_will(wanted: Wanted) -> Will:
    """The will as the broker keeps it."""
    properties = wanted.properties
    return Will(
        name=wanted.name,
        payload=wanted.payload,
        qos=wanted.qos,
        retain=wanted.retain,
        headers=stored_headers(properties),
        expiry_s=properties.message_expiry_interval,
        delay_s=properties.will_delay_interval or 0,
    )


def check_will(
    exchange: Exchange, principal: Principal, client_id: str, will: Will
) -> tuple[Reason, str]:
    """SUCCESS, or why a client with this will is rejected; and the same in words."""
    if will.name.count("/") >= NAME_LEVELS_MAX:
        why = f"the name of the will has more than {NAME_LEVELS_MAX} levels: choose a shorter one"
        return Reason.TOPIC_NAME_INVALID, why
    headers_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in will.headers)
    payload_bytes_max = exchange.publisher.payload_bytes_max
    if len(will.payload) > payload_bytes_max or headers_bytes > HEADERS_BYTES_MAX:
        return Reason.PACKET_TOO_LARGE, (
            f"a will has at most {payload_bytes_max} bytes of payload and "
            f"{HEADERS_BYTES_MAX} of user properties"
        )
    topic = exchange.engine.topics.of_name(will.name)
    may_publish = exchange.authorise(principal, PUBLISH, will.name, topic.key)
    if not may_publish and not is_state_of(will.name, client_id):
        return Reason.NOT_AUTHORIZED, f"a will for {quoted(will.name)} is not allowed"
    return Reason.SUCCESS, ""
