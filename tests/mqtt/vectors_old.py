"""Golden vectors of MQTT 3.1 and 3.1.1.

Written by hand from the specification; never regenerated from the code.
"""

from __future__ import annotations

from penstock.mqtt.kinds import Role
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from penstock.mqtt.reasons import Reason
from tests.mqtt.vector import CLIENT, SERVER, vector

# What MQTT 3.1 and 3.1.1 spell alike.
BOTH: list[tuple[str, Role, str, Packet]] = [
    ("CONNACK accepted", SERVER, "20 02 00 00", Connack()),
    (
        "CONNACK return code 1",
        SERVER,
        "20 02 00 01",
        Connack(False, Reason.UNSUPPORTED_PROTOCOL_VERSION),
    ),
    (
        "CONNACK return code 2",
        SERVER,
        "20 02 00 02",
        Connack(False, Reason.CLIENT_IDENTIFIER_NOT_VALID),
    ),
    ("CONNACK return code 3", SERVER, "20 02 00 03", Connack(False, Reason.SERVER_UNAVAILABLE)),
    (
        "CONNACK return code 4",
        SERVER,
        "20 02 00 04",
        Connack(False, Reason.BAD_USER_NAME_OR_PASSWORD),
    ),
    ("CONNACK return code 5", SERVER, "20 02 00 05", Connack(False, Reason.NOT_AUTHORIZED)),
    ("PUBLISH QoS 0", CLIENT, "30 07 0003 612f62 6869", Publish("a/b", b"hi")),
    (
        "PUBLISH QoS 1 retain",
        CLIENT,
        "33 09 0003 612f62 000a 6869",
        Publish("a/b", b"hi", 1, retain=True, packet_id=10),
    ),
    (
        "PUBLISH QoS 2 dup, no payload",
        SERVER,
        "3c 07 0003 612f62 ffff",
        Publish("a/b", b"", 2, dup=True, packet_id=65535),
    ),
    ("PUBACK", CLIENT, "40 02 000a", Puback(10)),
    ("PUBREC", SERVER, "50 02 0100", Pubrec(256)),
    ("PUBREL", CLIENT, "62 02 000a", Pubrel(10)),
    ("PUBCOMP", SERVER, "70 02 00ff", Pubcomp(255)),
    (
        "SUBSCRIBE",  # the example of 3.1.1 §3.8.3
        CLIENT,
        "82 0e 000a 0003 612f62 01 0003 632f64 02",
        Subscribe(10, (Subscription("a/b", 1), Subscription("c/d", 2))),
    ),
    (
        "SUBACK",
        SERVER,
        "90 05 000a 00 02 80",
        Suback(10, (Reason.GRANTED_QOS_0, Reason.GRANTED_QOS_2, Reason.UNSPECIFIED_ERROR)),
    ),
    (
        "UNSUBSCRIBE",
        CLIENT,
        "a2 0c 000a 0003 612f62 0003 632f64",
        Unsubscribe(10, ("a/b", "c/d")),
    ),
    ("UNSUBACK", SERVER, "b0 02 000a", Unsuback(10)),
    ("PINGREQ", CLIENT, "c0 00", Pingreq()),
    ("PINGRESP", SERVER, "d0 00", Pingresp()),
    ("DISCONNECT", CLIENT, "e0 00", Disconnect()),
]

OLD = [
    vector(
        "CONNECT MQIsdp",
        3,
        CLIENT,
        "10 0f 0006 4d5149736470 03 02 000a 0001 61",
        Connect("a", True, 10, version=3),
    ),
    vector(
        "CONNECT MQIsdp of a bridge",
        3,
        CLIENT,
        "10 0f 0006 4d5149736470 83 02 000a 0001 61",
        Connect("a", True, 10, version=3, is_bridge=True),
    ),
    vector(
        "CONNECT MQTT 3.1.1 of a bridge",
        4,
        CLIENT,
        "10 0d 0004 4d515454 84 02 000a 0001 61",
        Connect("a", True, 10, version=4, is_bridge=True),
    ),
    vector(
        "CONNECT MQIsdp with will and credentials",
        3,
        CLIENT,
        "10 22 0006 4d5149736470 03 cc 0000 0003 636c69 0003 772f74 0003 627965 0001 75 0002 7077",
        Connect("cli", False, 0, Will("w/t", b"bye", 1), "u", b"pw", version=3),
    ),
    vector(
        "CONNECT without client id",
        4,
        CLIENT,
        "10 0c 0004 4d515454 04 02 003c 0000",
        Connect("", True, 60, version=4),
    ),
    vector(
        "CONNECT with will and credentials",
        4,
        CLIENT,
        "10 20 0004 4d515454 04 ec ffff 0003 636c69 0003 772f74 0003 627965 0001 75 0002 7077",
        Connect("cli", False, 65535, Will("w/t", b"bye", 1, True), "u", b"pw", version=4),
    ),
    vector(
        "CONNECT with a user name and no password",
        4,
        CLIENT,
        "10 10 0004 4d515454 04 82 0000 0001 63 0001 75",
        Connect("c", True, 0, username="u", version=4),
    ),
    vector("CONNACK session present", 4, SERVER, "20 02 01 00", Connack(True)),
    vector(
        "PUBLISH with two length bytes",
        4,
        CLIENT,
        "30 cd01 0003 612f62" + "78" * 200,
        Publish("a/b", b"x" * 200),
    ),
    vector(
        "PUBLISH with three length bytes",
        4,
        CLIENT,
        "30 808001 0003 612f62" + "78" * 16379,
        Publish("a/b", b"x" * 16379),
    ),
    vector(
        "PUBLISH under a name beyond ASCII",
        4,
        CLIENT,
        "30 09 0007 c3a9 2f f09f9880",
        Publish("é/\N{GRINNING FACE}", b""),
    ),
    vector(
        "PUBLISH under a name with a BOM, which stays",  # [MQTT-1.5.3-3]
        4,
        CLIENT,
        "30 06 0004 efbbbf 61",
        Publish("\ufeffa", b""),
    ),
]

VECTORS_OLD = [
    *(
        vector(title, level, sender, text, packet)
        for level in (3, 4)
        for title, sender, text, packet in BOTH
    ),
    *OLD,
]
