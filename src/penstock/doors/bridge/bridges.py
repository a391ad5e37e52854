"""All bridges of a broker: started after its doors, stopped before them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from penstock.broker.limited_log import LimitedLog
from penstock.doors.bridge.bridge import CONNECTED, Bridge
from penstock.doors.bridge.settings import BridgeSettings, make_context, read_password
from penstock.doors.mqtt.door import MqttDoor
from penstock.doors.selector import DoorSelector
from penstock.model.record import TenantId


class Bridges:
    """InvalidSetting when it is made if a file of a bridge cannot be used."""

    def __init__(
        self, settings: Iterable[BridgeSettings], door: MqttDoor, selector: DoorSelector
    ) -> None:
        self._log = LimitedLog("penstock.bridge", asyncio.get_running_loop())
        self.all = [
            Bridge(
                one,
                door,
                self._log,
                context=make_context(one),
                password=read_password(one),
                selector=selector,
            )
            for one in settings
        ]

    def of(self, tenant: TenantId) -> list[Bridge]:
        return [one for one in self.all if one.settings.tenant == tenant]

    async def prepare(self) -> None:
        """Before any client is served: see `Bridge.prepare`."""
        for one in self.all:
            await one.prepare()

    def start(self) -> None:
        for one in self.all:
            one.start()

    async def stop(self) -> None:
        for one in self.all:
            await one.stop()
        self._log.close()

    def export(self, tenant: TenantId) -> dict[str, float]:
        """Metrics of a tenant's bridges: names as they are exported, with their values."""
        values: dict[str, float] = {}
        for one in self.of(tenant):
            label = f'{{bridge="{one.settings.name}"}}'
            is_connected = one.state.word == CONNECTED
            counts = one.counts
            values[f"penstock_bridge_connections{label}"] = int(is_connected)
            values[f"penstock_bridge_lag_records{label}"] = one.lag
            values[f"penstock_bridge_forwarded_messages_total{label}"] = counts.forwarded
            values[f"penstock_bridge_received_messages_total{label}"] = counts.received
            values[f"penstock_bridge_refused_messages_total{label}"] = counts.refused
        return values


def check_files(settings: Iterable[BridgeSettings]) -> None:
    """InvalidSetting if a file of a bridge cannot be used."""
    for one in settings:
        make_context(one)
        read_password(one)
