"""Bytes that break a rule: the reason code a peer must get, and the clause that says so."""

from __future__ import annotations

from typing import NamedTuple

from penstock.mqtt.kinds import Role
from penstock.mqtt.reasons import Reason
from tests.mqtt.vector import CLIENT, KV, SERVER

MALFORMED = Reason.MALFORMED_PACKET
ERROR = Reason.PROTOCOL_ERROR
NAME = Reason.TOPIC_NAME_INVALID


class Broken(NamedTuple):
    title: str
    version: int  # 0: the first packet of a connection
    sender: Role
    raw: bytes
    reason: Reason
    clause: str  # empty where no numbered statement covers it


def broken(
    title: str,
    version: int,
    text: str,
    reason: Reason,
    clause: str = "",
    sender: Role = CLIENT,
) -> Broken:
    return Broken(f"{title}, level {version}", version, sender, bytes.fromhex(text), reason, clause)


V4 = "0004 4d515454 04"
V5 = "0004 4d515454 05"
VERSION = Reason.UNSUPPORTED_PROTOCOL_VERSION

HANDSHAKE = [
    broken("PUBLISH first", 0, "30 07 0003 612f62 6869", ERROR, "MQTT-3.1.0-1"),
    broken("a TLS hello", 0, "16 03 01 02 00", MALFORMED, "MQTT-2.1.3-1"),
    broken("an HTTP request", 0, "47 45 54 20 2f", ERROR, "MQTT-3.1.0-1"),
    broken("unknown level", 0, "10 0c 0004 4d515454 06 02 003c 0000", VERSION, "MQTT-3.1.2-2"),
    broken(  # before MQTT 5 there is one
        "bridge bit in MQTT 5", 0, "10 0d 0004 4d515454 85 02 003c 00 0000", VERSION, "MQTT-3.1.2-2"
    ),
    broken("unknown name", 0, "10 0c 0004 4d515458 04 02 003c 0000", VERSION, "MQTT-3.1.2-2"),
    broken("MQTT at level 3", 0, "10 0c 0004 4d515454 03 02 003c 0000", VERSION, "MQTT-3.1.2-2"),
    broken("CONNECT ends in its name", 0, "10 04 0004 4d51", MALFORMED),
    broken("CONNECT ends in its flags", 0, f"10 07 {V4}", MALFORMED),
    broken("CONNECT ends in its keep alive", 0, f"10 09 {V4} 02 00", MALFORMED),
    broken("CONNECT without client id", 0, f"10 0a {V4} 02 003c", MALFORMED),
    broken("reserved flag", 0, f"10 0c {V4} 03 003c 0000", MALFORMED, "MQTT-3.1.2-3"),
    broken("will QoS 3", 0, f"10 0c {V4} 1e 003c 0000", MALFORMED, "MQTT-3.1.2-12"),
    broken("will QoS, no will", 0, f"10 0c {V4} 0a 003c 0000", MALFORMED, "MQTT-3.1.2-11"),
    broken("will retain, no will", 0, f"10 0c {V4} 22 003c 0000", MALFORMED, "MQTT-3.1.2-11"),
    broken("will flag, no will", 0, f"10 0d {V4} 06 003c 0001 61", MALFORMED),
    broken(
        "will with wildcard", 0, f"10 12 {V4} 06 003c 0001 61 0001 23 0000", NAME, "MQTT-3.3.2-2"
    ),
    broken("will without name", 0, f"10 11 {V4} 06 003c 0001 61 0000 0000", NAME, "MQTT-4.7.3-1"),
    broken("password alone", 0, f"10 10 {V4} 42 003c 0001 61 0001 70", MALFORMED, "MQTT-3.1.2-22"),
    broken("user name missing", 0, f"10 0d {V4} 82 003c 0001 61", MALFORMED),
    broken("bytes after CONNECT's last field", 0, f"10 0d {V4} 02 003c 0000 00", MALFORMED),
    broken(
        "no client id, session kept",
        0,
        f"10 0c {V4} 00 003c 0000",
        Reason.CLIENT_IDENTIFIER_NOT_VALID,
        "MQTT-3.1.3-8",
    ),
    broken(
        "no client id in MQTT 3.1",
        0,
        "10 0e 0006 4d5149736470 03 02 000a 0000",
        Reason.CLIENT_IDENTIFIER_NOT_VALID,
        "MQTT-3.1.3-8",
    ),
    broken("client id with NUL", 0, f"10 0d {V4} 02 003c 0001 00", MALFORMED, "MQTT-1.5.4-2"),
    broken("client id not UTF-8", 0, f"10 0d {V4} 02 003c 0001 ff", MALFORMED, "MQTT-1.5.4-1"),
    broken("no property length", 0, f"10 0a {V5} 02 003c", MALFORMED),
    broken("properties past the end", 0, f"10 0d {V5} 02 003c 05 0000", MALFORMED),
    broken("receive maximum 0", 0, f"10 10 {V5} 02 003c 03 21 0000 0000", ERROR),
    broken("maximum packet size 0", 0, f"10 12 {V5} 02 003c 05 27 00000000 0000", ERROR),
    broken("problem information 2", 0, f"10 0f {V5} 02 003c 02 17 02 0000", ERROR),
    broken(
        "authentication data alone",
        0,
        f"10 11 {V5} 02 003c 04 16 0001 00 0000",
        ERROR,
        "MQTT 5 §3.1.2.11.10",
    ),
    broken(
        "will delay outside a will",
        0,
        f"10 12 {V5} 02 003c 05 18 00000001 0000",
        MALFORMED,
        "MQTT 5 §2.2.2.2",
    ),
    broken(
        "session expiry inside a will",
        0,
        f"10 19 {V5} 06 003c 00 0001 61 05 11 00000001 0001 77 0000",
        MALFORMED,
        "MQTT 5 §2.2.2.2",
    ),
    broken("CONNACK flags", 4, "20 02 02 00", MALFORMED, "MQTT-3.2.2-1", SERVER),
    broken("return code 6", 4, "20 02 00 06", ERROR, "MQTT 3.1.1 §3.2.2.3", SERVER),
    broken("refused with session", 4, "20 02 01 05", ERROR, "MQTT-3.2.2-6", SERVER),
    broken("refused with session", 5, "20 03 01 87 00", ERROR, "MQTT-3.2.2-6", SERVER),
    broken("CONNACK with SUBACK's reason", 5, "20 03 00 01 00", ERROR, "", SERVER),
    broken("CONNACK without properties", 5, "20 02 00 00", MALFORMED, "", SERVER),
    broken("CONNACK too long", 4, "20 03 00 00 00", MALFORMED, "", SERVER),
    broken("maximum QoS 2", 5, "20 05 00 00 02 24 02", ERROR, "", SERVER),
]

MESSAGES = [
    broken("QoS 3", 4, "36 07 0003 612f62 0001", MALFORMED, "MQTT-3.3.1-4"),
    broken("DUP at QoS 0", 4, "38 05 0003 612f62", MALFORMED, "MQTT-3.3.1-2"),
    broken("no name", 4, "30 02 0000", NAME, "MQTT-4.7.3-1"),
    broken("no name, no alias", 5, "30 03 0000 00", ERROR, "MQTT 5 §3.3.2.1"),
    broken("name with #", 4, "30 05 0003 612f23", NAME, "MQTT-3.3.2-2"),
    broken("name with +", 5, "30 06 0003 2b2f62 00", NAME, "MQTT-3.3.2-2"),
    broken("name with NUL", 4, "30 05 0003 610062", MALFORMED, "MQTT-1.5.4-2"),
    broken("name with a surrogate", 4, "30 05 0003 eda080", MALFORMED, "MQTT-1.5.4-1"),
    broken("name with an overlong byte", 4, "30 04 0002 c0af", MALFORMED, "MQTT-1.5.4-1"),
    broken("name cut in a character", 4, "30 04 0002 61c3", MALFORMED, "MQTT-1.5.4-1"),
    broken("name past U+10FFFF", 4, "30 06 0004 f4908080", MALFORMED, "MQTT-1.5.4-1"),
    broken("nothing at all", 4, "30 00", MALFORMED),
    broken("half a name length", 4, "30 01 00", MALFORMED),
    broken("name past the end", 4, "30 04 0003 612f", MALFORMED),
    broken("no packet id", 4, "32 05 0003 612f62", MALFORMED),
    broken("half a packet id", 4, "32 06 0003 612f62 00", MALFORMED),
    broken("packet id 0", 4, "32 07 0003 612f62 0000", ERROR, "MQTT-2.2.1-3"),
    broken("packet id 0", 5, "34 08 0003 612f62 0000 00", ERROR, "MQTT-2.2.1-3"),
    broken("no property length", 5, "30 05 0003 612f62", MALFORMED),
    broken("no property length", 5, "32 07 0003 612f62 0001", MALFORMED),
    broken("properties past the end", 5, "30 07 0003 612f62 02 01", MALFORMED),
    broken("property cut", 5, "30 07 0003 612f62 01 01", MALFORMED),
    broken("padded property length", 5, "30 07 0003 612f62 8000", MALFORMED, "MQTT-1.5.5-1"),
    broken("endless property length", 5, "30 09 0003 612f62 ffffffff", MALFORMED, "MQTT-1.5.5-1"),
    broken("unknown property", 5, "30 08 0003 612f62 02 00 00", MALFORMED, "MQTT 5 §2.2.2.2"),
    broken("CONNECT's property", 5, "30 09 0003 612f62 03 21 0001", MALFORMED, "MQTT 5 §2.2.2.2"),
    broken("payload format 2", 5, "30 08 0003 612f62 02 01 02", ERROR),
    broken("payload format twice", 5, "30 0a 0003 612f62 04 01 01 01 01", ERROR),
    broken("topic alias 0", 5, "30 09 0003 612f62 03 23 0000", Reason.TOPIC_ALIAS_INVALID),
    broken("response topic with #", 5, "30 0a 0003 612f62 04 08 0001 23", NAME, "MQTT-3.3.2-2"),
    broken("response topic empty", 5, "30 09 0003 612f62 03 08 0000", NAME, "MQTT-4.7.3-1"),
    broken(
        "subscription identifier from a client",
        5,
        "30 08 0003 612f62 02 0b 01",
        ERROR,
        "MQTT-3.3.4-6",
    ),
    broken("subscription identifier 0", 5, "30 08 0003 612f62 02 0b 00", ERROR, "", SERVER),
    broken(
        "user property with NUL",
        5,
        "30 0c 0003 612f62 06 26 0001 00 0000",
        MALFORMED,
        "MQTT-1.5.4-2",
    ),
    broken("PUBACK of one byte", 4, "40 01 00", MALFORMED),
    broken("PUBACK too long", 4, "40 03 0001 00", MALFORMED),
    broken("PUBACK with flags", 4, "41 02 0001", MALFORMED, "MQTT-2.1.3-1"),
    broken("PUBACK of packet id 0", 4, "40 02 0000", ERROR, "MQTT-2.2.1-3"),
    broken("PUBACK with PUBREL's reason", 5, "40 03 0001 92", ERROR),
    broken("PUBACK with an unknown reason", 5, "40 03 0001 ee", ERROR),
    broken("PUBACK too long", 5, "40 05 0001 00 00 00", MALFORMED),
    broken("PUBREL without its flag", 4, "60 02 0001", MALFORMED, "MQTT-2.1.3-1"),
    broken("PUBREL with DUP", 4, "6a 02 0001", MALFORMED, "MQTT-2.1.3-1"),
    broken("PUBCOMP with PUBACK's reason", 5, "70 03 0001 10", ERROR),
    broken("PUBREC with a property cut", 5, "50 06 0001 80 02 1f 00", MALFORMED),
]

REST = [
    broken("reserved type 0", 4, "00 00", MALFORMED),
    broken("AUTH before MQTT 5", 4, "f0 00", MALFORMED),
    broken("SUBSCRIBE without its flag", 4, "80 08 0001 0003 612f62 01", MALFORMED, "MQTT-2.1.3-1"),
    broken("SUBSCRIBE to nothing", 4, "82 02 0001", ERROR, "MQTT-3.8.3-2"),
    broken("SUBSCRIBE to nothing", 5, "82 03 0001 00", ERROR, "MQTT-3.8.3-2"),
    broken(
        "SUBSCRIBE to an empty filter",
        4,
        "82 05 0001 0000 00",
        Reason.TOPIC_FILTER_INVALID,
        "MQTT-4.7.3-1",
    ),
    broken("SUBSCRIBE without options", 4, "82 07 0001 0003 612f62", MALFORMED),
    broken("SUBSCRIBE with packet id 0", 4, "82 08 0000 0003 612f62 01", ERROR, "MQTT-2.2.1-3"),
    broken("SUBSCRIBE at QoS 3", 4, "82 08 0001 0003 612f62 03", ERROR, "MQTT 5 §3.8.3.1"),
    broken("SUBSCRIBE at QoS 3", 5, "82 09 0001 00 0003 612f62 03", ERROR, "MQTT 5 §3.8.3.1"),
    broken("reserved options", 4, "82 08 0001 0003 612f62 05", MALFORMED, "MQTT-3.8.3-5"),
    broken("reserved options", 5, "82 09 0001 00 0003 612f62 41", MALFORMED, "MQTT-3.8.3-5"),
    broken("retain handling 3", 5, "82 09 0001 00 0003 612f62 30", ERROR, "MQTT 5 §3.8.3.1"),
    broken(
        "no local on a shared filter",
        5,
        "82 10 0001 00 000a 2473686172652f672f61 04",
        ERROR,
        "MQTT-3.8.3-4",
    ),
    broken("two subscription identifiers", 5, "82 0d 0001 04 0b 01 0b 02 0003 612f62 00", ERROR),
    broken("subscription identifier 0", 5, "82 0b 0001 02 0b 00 0003 612f62 00", ERROR),
    broken("SUBACK with nothing", 4, "90 02 0001", ERROR, "", SERVER),
    broken("SUBACK with 3", 4, "90 03 0001 03", ERROR, "", SERVER),
    broken("SUBACK with 0x87", 4, "90 03 0001 87", ERROR, "", SERVER),
    broken("SUBACK with 0x11", 5, "90 04 0001 00 11", ERROR, "", SERVER),
    broken("UNSUBSCRIBE nothing", 4, "a2 02 0001", ERROR, "MQTT-3.10.3-2"),
    broken("UNSUBSCRIBE with flags 0", 5, "a0 06 0001 00 0001 61", MALFORMED, "MQTT-2.1.3-1"),
    broken("UNSUBACK with reasons", 4, "b0 03 0001 00", MALFORMED, "", SERVER),
    broken("UNSUBACK with nothing", 5, "b0 03 0001 00", ERROR, "", SERVER),
    broken("UNSUBACK with QoS 1", 5, "b0 04 0001 00 01", ERROR, "", SERVER),
    broken("PINGREQ with a body", 4, "c0 01 00", MALFORMED),
    broken("PINGRESP with a body", 5, "d0 01 00", MALFORMED, "", SERVER),
    broken("PINGREQ with flags", 5, "c1 00", MALFORMED, "MQTT-2.1.3-1"),
    broken("DISCONNECT with a body", 4, "e0 01 00", MALFORMED),
    broken("DISCONNECT from an old server", 4, "e0 00", ERROR, "", SERVER),
    broken("DISCONNECT with a server's reason", 5, "e0 01 8b", ERROR),
    broken("DISCONNECT with a client's reason", 5, "e0 01 04", ERROR, "", SERVER),
    broken(
        "session expiry from a server",
        5,
        "e0 07 00 05 11 00000000",
        ERROR,
        "MQTT-3.14.2-2",
        SERVER,
    ),
    broken("server reference from a client", 5, "e0 06 00 04 1c 0001 73", ERROR),
    broken("AUTH without a method", 5, "f0 02 18 00", ERROR, "MQTT 5 §3.15.2.2.2"),
    broken("AUTH success from a client", 5, "f0 00", ERROR),
    broken("AUTH again from a server", 5, "f0 06 19 04 15 0001 6d", ERROR, "", SERVER),
    broken("reason string twice", 5, "40 0c 0001 80 08 1f 0001 66 1f 0001 66", ERROR, "", SERVER),
    broken(
        "reason string in UNSUBSCRIBE",
        5,
        "a2 0a 0001 04 1f 0001 66 0001 61",
        MALFORMED,
        "MQTT 5 §2.2.2.2",
    ),
    broken("user property cut", 5, f"e0 08 00 06 {KV[:-3]}", MALFORMED),
]

BROKEN = [*HANDSHAKE, *MESSAGES, *REST]
