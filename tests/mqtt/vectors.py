"""Golden vectors: packets and their bytes, written by hand from the specifications.

Never regenerated from the code. VECTORS are read and written back; READ_ONLY are longer spellings
that a reader must accept but our writer does not use.
"""

from __future__ import annotations

from penstock.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from penstock.mqtt.properties import Properties
from tests.mqtt.vector import CLIENT, KV, SERVER, vector
from tests.mqtt.vectors_5 import VECTORS_5
from tests.mqtt.vectors_old import VECTORS_OLD

VECTORS = [*VECTORS_OLD, *VECTORS_5]

READ_ONLY = [
    vector(  # MQTT 3.1 §3.1: the length takes precedence over the flags
        "CONNECT MQIsdp with flags for credentials that are not there",
        3,
        CLIENT,
        "10 0f 0006 4d5149736470 03 c2 000a 0001 61",
        Connect("a", True, 10, version=3),
    ),
    vector(
        "CONNECT MQIsdp with a user name and a flag for a password that is not there",
        3,
        CLIENT,
        "10 12 0006 4d5149736470 03 c2 000a 0001 61 0001 75",
        Connect("a", True, 10, username="u", version=3),
    ),
    vector(
        "CONNECT MQIsdp with a will's QoS and retain and no will, and the unused bit set",
        3,
        CLIENT,
        "10 0f 0006 4d5149736470 03 2b 000a 0001 61",
        Connect("a", True, 10, version=3),
    ),
    vector("CONNACK with its unused byte set", 3, SERVER, "20 02 01 00", Connack()),
    vector("PUBREL with DUP", 3, CLIENT, "6a 02 000a", Pubrel(10)),
    vector(
        "SUBSCRIBE with DUP",
        3,
        CLIENT,
        "8a 08 000a 0003 612f62 01",
        Subscribe(10, (Subscription("a/b", 1),)),
    ),
    vector(
        "SUBSCRIBE with unused bits set beside the QoS",
        3,
        CLIENT,
        "82 08 000a 0003 612f62 fd",
        Subscribe(10, (Subscription("a/b", 1),)),
    ),
    vector("UNSUBSCRIBE with DUP", 3, CLIENT, "aa 07 000a 0003 612f62", Unsubscribe(10, ("a/b",))),
    vector("PUBACK with success spelled out", 5, CLIENT, "40 03 000a 00", Puback(10)),
    vector("PUBACK with no properties spelled out", 5, CLIENT, "40 04 000a 00 00", Puback(10)),
    vector("DISCONNECT spelled out", 5, CLIENT, "e0 02 00 00", Disconnect()),
    vector(
        "properties in another order",
        5,
        CLIENT,
        f"30 11 0003 612f62 0b {KV} 03 0001 74",
        Publish("a/b", b"", properties=Properties(content_type="t", user_properties=(("k", "v"),))),
    ),
]
