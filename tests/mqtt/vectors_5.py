"""Golden vectors of MQTT 5.

Written by hand from the specification; never regenerated from the code.
"""

from __future__ import annotations

from penstock.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
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
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.mqtt.vector import CLIENT, EXPLAINED, KV, SERVER, WHY, vector

CONNECT_5 = [
    vector(
        "CONNECT without anything",
        5,
        CLIENT,
        "10 0d 0004 4d515454 05 02 003c 00 0000",
        Connect("", True, 60),
    ),
    vector(
        "CONNECT with every property",
        5,
        CLIENT,
        "10 5f 0004 4d515454 05 d6 0001"
        "24 11 0000000a 15 0001 6d 16 0002 0102 17 00 19 01 21 0014 22 000a 27 00001000"
        "26 0001 61 0001 62"
        "0001 63"
        f"1f 01 01 02 0000003c 03 0001 74 08 0001 72 09 0001 ff 18 00000005 {KV}"
        "0001 77 0002 6f6e 0001 75 0001 70",
        Connect(
            "c",
            True,
            1,
            Will(
                "w",
                b"on",
                2,
                False,
                Properties(
                    payload_format_indicator=1,
                    message_expiry_interval=60,
                    content_type="t",
                    response_topic="r",
                    correlation_data=b"\xff",
                    will_delay_interval=5,
                    user_properties=(("k", "v"),),
                ),
            ),
            "u",
            b"p",
            properties=Properties(
                session_expiry_interval=10,
                authentication_method="m",
                authentication_data=b"\x01\x02",
                request_problem_information=0,
                request_response_information=1,
                receive_maximum=20,
                topic_alias_maximum=10,
                maximum_packet_size=4096,
                user_properties=(("a", "b"),),
            ),
        ),
    ),
    vector(
        "CONNECT with a password and no user name",
        5,
        CLIENT,
        "10 11 0004 4d515454 05 42 0000 00 0001 63 0001 70",
        Connect("c", True, 0, password=b"p"),
    ),
    vector("CONNACK", 5, SERVER, "20 03 00 00 00", Connack()),
    vector("CONNACK refused", 5, SERVER, "20 03 00 87 00", Connack(False, Reason.NOT_AUTHORIZED)),
    vector(
        "CONNACK with every property",
        5,
        SERVER,
        "20 42 01 00"
        "3f 11 00000064 12 0002 6964 13 001e 15 0001 6d 16 0001 00 1a 0002 7269 1c 0001 73"
        "1f 0002 6f6b 21 0001 22 ffff 24 01 25 00 27 ffffffff 28 01 29 00 2a 01"
        f"{KV}",
        Connack(
            True,
            Reason.SUCCESS,
            Properties(
                session_expiry_interval=100,
                assigned_client_identifier="id",
                server_keep_alive=30,
                authentication_method="m",
                authentication_data=b"\0",
                response_information="ri",
                server_reference="s",
                reason_string="ok",
                receive_maximum=1,
                topic_alias_maximum=65535,
                maximum_qos=1,
                retain_available=0,
                maximum_packet_size=0xFFFFFFFF,
                wildcard_subscription_available=1,
                subscription_identifier_available=0,
                shared_subscription_available=1,
                user_properties=(("k", "v"),),
            ),
        ),
    ),
]

PUBLISH_5 = [
    vector("PUBLISH QoS 0", 5, CLIENT, "30 08 0003 612f62 00 6869", Publish("a/b", b"hi")),
    vector(
        "PUBLISH QoS 1",
        5,
        SERVER,
        "32 0a 0003 612f62 0102 00 6869",
        Publish("a/b", b"hi", 1, packet_id=258),
    ),
    vector(
        "PUBLISH with every property of a client",
        5,
        CLIENT,
        "32 34 0003 612f62 0001"
        "2a 01 01 02 00000e10 03 0004 6a736f6e 08 0003 722f31 09 0002 cafe 23 0007"
        f"{KV} 26 0001 6b 0001 77"
        "6869",
        Publish(
            "a/b",
            b"hi",
            1,
            packet_id=1,
            properties=Properties(
                payload_format_indicator=1,
                message_expiry_interval=3600,
                content_type="json",
                response_topic="r/1",
                correlation_data=b"\xca\xfe",
                topic_alias=7,
                user_properties=(("k", "v"), ("k", "w")),
            ),
        ),
    ),
    vector(
        "PUBLISH with subscription identifiers",
        5,
        SERVER,
        "34 0e 0003 612f62 0001 05 0b 01 0b 8001 78",
        Publish(
            "a/b", b"x", 2, packet_id=1, properties=Properties(subscription_identifiers=(1, 128))
        ),
    ),
    vector(
        "PUBLISH by alias alone",
        5,
        CLIENT,
        "30 06 0000 03 23 0001",
        Publish("", b"", properties=Properties(topic_alias=1)),
    ),
    vector("PUBACK", 5, CLIENT, "40 02 000a", Puback(10)),
    vector(
        "PUBACK with a reason",
        5,
        SERVER,
        "40 03 000a 10",
        Puback(10, Reason.NO_MATCHING_SUBSCRIBERS),
    ),
    vector(
        "PUBACK with properties",
        5,
        SERVER,
        f"40 0f 000a 97 0b {WHY} {KV}",
        Puback(10, Reason.QUOTA_EXCEEDED, EXPLAINED),
    ),
    vector("PUBREC", 5, SERVER, "50 02 000a", Pubrec(10)),
    vector(
        "PUBREC with properties",
        5,
        CLIENT,
        f"50 0f 000a 91 0b {WHY} {KV}",
        Pubrec(10, Reason.PACKET_IDENTIFIER_IN_USE, EXPLAINED),
    ),
    vector("PUBREL", 5, CLIENT, "62 02 000a", Pubrel(10)),
    vector(
        "PUBREL with a reason",
        5,
        SERVER,
        "62 03 000a 92",
        Pubrel(10, Reason.PACKET_IDENTIFIER_NOT_FOUND),
    ),
    vector(
        "PUBREL success with properties",
        5,
        CLIENT,
        f"62 0f 000a 00 0b {WHY} {KV}",
        Pubrel(10, Reason.SUCCESS, EXPLAINED),
    ),
    vector("PUBCOMP", 5, CLIENT, "70 02 000a", Pubcomp(10)),
    vector(
        "PUBCOMP with properties",
        5,
        SERVER,
        f"70 0f 000a 92 0b {WHY} {KV}",
        Pubcomp(10, Reason.PACKET_IDENTIFIER_NOT_FOUND, EXPLAINED),
    ),
]

REST_5 = [
    vector(
        "SUBSCRIBE with every option",
        5,
        CLIENT,
        f"82 17 000a 0a 0b 8101 {KV} 0003 612f23 2d 0001 2b 10",
        Subscribe(
            10,
            (
                Subscription("a/#", 1, no_local=True, retain_as_published=True, retain_handling=2),
                Subscription("+", 0, retain_handling=1),
            ),
            Properties(subscription_identifiers=(129,), user_properties=(("k", "v"),)),
        ),
    ),
    vector(
        "SUBSCRIBE to a shared filter",
        5,
        CLIENT,
        "82 10 0001 00 000a 2473686172652f672f61 02",
        Subscribe(1, (Subscription("$share/g/a", 2),)),
    ),
    vector(
        "SUBACK with every reason",
        5,
        SERVER,
        "90 0f 000a 00 00 01 02 80 83 87 8f 91 97 9e a1 a2",
        Suback(
            10,
            (
                Reason.GRANTED_QOS_0,
                Reason.GRANTED_QOS_1,
                Reason.GRANTED_QOS_2,
                Reason.UNSPECIFIED_ERROR,
                Reason.IMPLEMENTATION_SPECIFIC_ERROR,
                Reason.NOT_AUTHORIZED,
                Reason.TOPIC_FILTER_INVALID,
                Reason.PACKET_IDENTIFIER_IN_USE,
                Reason.QUOTA_EXCEEDED,
                Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
                Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
                Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
            ),
        ),
    ),
    vector(
        "SUBACK with properties",
        5,
        SERVER,
        f"90 0f 000a 0b {WHY} {KV} 01",
        Suback(10, (Reason.GRANTED_QOS_1,), EXPLAINED),
    ),
    vector(
        "UNSUBSCRIBE",
        5,
        CLIENT,
        f"a2 0f 000a 07 {KV} 0003 612f23",
        Unsubscribe(10, ("a/#",), Properties(user_properties=(("k", "v"),))),
    ),
    vector(
        "UNSUBACK with every reason",
        5,
        SERVER,
        "b0 0a 000a 00 00 11 80 83 87 8f 91",
        Unsuback(
            10,
            (
                Reason.SUCCESS,
                Reason.NO_SUBSCRIPTION_EXISTED,
                Reason.UNSPECIFIED_ERROR,
                Reason.IMPLEMENTATION_SPECIFIC_ERROR,
                Reason.NOT_AUTHORIZED,
                Reason.TOPIC_FILTER_INVALID,
                Reason.PACKET_IDENTIFIER_IN_USE,
            ),
        ),
    ),
    vector(
        "UNSUBACK with properties",
        5,
        SERVER,
        f"b0 0f 000a 0b {WHY} {KV} 00",
        Unsuback(10, (Reason.SUCCESS,), EXPLAINED),
    ),
    vector("PINGREQ", 5, CLIENT, "c0 00", Pingreq()),
    vector("PINGRESP", 5, SERVER, "d0 00", Pingresp()),
    vector("DISCONNECT", 5, CLIENT, "e0 00", Disconnect()),
    vector("DISCONNECT with will", 5, CLIENT, "e0 01 04", Disconnect(Reason.DISCONNECT_WITH_WILL)),
    vector(
        "DISCONNECT with a session expiry",
        5,
        CLIENT,
        "e0 07 00 05 11 00000000",
        Disconnect(Reason.NORMAL_DISCONNECTION, Properties(session_expiry_interval=0)),
    ),
    vector(
        "DISCONNECT from the server with every property",
        5,
        SERVER,
        f"e0 11 9d 0f 1c 0001 73 {WHY} {KV}",
        Disconnect(
            Reason.SERVER_MOVED,
            Properties(server_reference="s", reason_string="f", user_properties=(("k", "v"),)),
        ),
    ),
    vector("AUTH success", 5, SERVER, "f0 00", Auth()),
    vector(
        "AUTH with every property",
        5,
        CLIENT,
        f"f0 15 18 13 15 0001 6d 16 0001 01 {WHY} {KV}",
        Auth(
            Reason.CONTINUE_AUTHENTICATION,
            Properties(
                authentication_method="m",
                authentication_data=b"\x01",
                reason_string="f",
                user_properties=(("k", "v"),),
            ),
        ),
    ),
    vector(
        "AUTH again",
        5,
        CLIENT,
        "f0 06 19 04 15 0001 6d",
        Auth(Reason.REAUTHENTICATE, Properties(authentication_method="m")),
    ),
]

VECTORS_5 = [*CONNECT_5, *PUBLISH_5, *REST_5]
