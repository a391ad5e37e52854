"""A golden vector: a packet, its bytes, its version and who sends it."""

from __future__ import annotations

from typing import NamedTuple

from penstock.mqtt.kinds import Role
from penstock.mqtt.packets import (
    Packet,
)
from penstock.mqtt.properties import Properties

CLIENT = Role.CLIENT
SERVER = Role.SERVER


class Vector(NamedTuple):
    title: str
    version: int
    sender: Role
    raw: bytes
    packet: Packet


def vector(title: str, version: int, sender: Role, text: str, packet: Packet) -> Vector:
    return Vector(f"{title}, level {version}", version, sender, bytes.fromhex(text), packet)


KV = "26 0001 6b 0001 76"  # user property k = v, seven bytes
WHY = "1f 0001 66"  # reason string "f", four bytes
EXPLAINED = Properties(reason_string="f", user_properties=(("k", "v"),))
