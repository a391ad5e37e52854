"""A tenant as the MQTT door sees it."""

from __future__ import annotations

import asyncio

from penstock.broker.exchange import Exchange
from penstock.broker.session.wills import Wills
from penstock.broker.world import World
from penstock.doors.mqtt.dollar_sys import DollarSys
from penstock.doors.mqtt.host import Spawn
from penstock.doors.mqtt.receive.subscribing import Subscribing
from penstock.model.record import TenantId
from penstock.model.version import VERSION


class MqttWorld:
    """Where the clients of a tenant publish, subscribe and leave their wills."""

    def __init__(
        self, world: World, loop: asyncio.AbstractEventLoop, sys_interval_s: int, spawn: Spawn
    ) -> None:
        self.tenant: TenantId = world.tenant
        self.exchange: Exchange = world.exchange
        self.wills: Wills = world.wills
        version = f"penstock version {VERSION}"
        self.dollar_sys = DollarSys(world.exchange, loop, sys_interval_s, version)
        self.subscribing = Subscribing(world.exchange, self.dollar_sys, spawn)
