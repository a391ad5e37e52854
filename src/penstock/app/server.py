"""A broker with its doors open: what `penstock serve` runs."""

from __future__ import annotations

import asyncio
import ssl

from penstock.app.aio import AsyncBroker
from penstock.broker.exchange import Exchange
from penstock.broker.keeper import Keeper
from penstock.config import OFF, ServerSettings, parse_address
from penstock.core.placement import DEFAULT_TOPIC
from penstock.doors.mqtt.door import MqttDoor
from penstock.doors.selector import DoorSelector
from penstock.doors.tls import server_context
from penstock.model.errors import UnavailableError


class Server:
    """The broker and its doors. Runs on a DoorLoop."""

    def __init__(self, settings: ServerSettings, selector: DoorSelector) -> None:
        self.broker = AsyncBroker(settings.data, **settings.broker)
        self.addresses: list[str] = []
        self._settings = settings
        self._selector = selector
        self._mqtt: MqttDoor | None = None
        self._keeper: Keeper | None = None

    async def open(self) -> None:
        """Open the data directory first, the doors last."""
        settings = self._settings
        context = tls_context(settings)
        await self.broker.open()
        try:
            await self._apply_bindings()
            access = self.broker.engine.access
            access.allow_anonymous = settings.allow_anonymous
            if settings.mqtt != OFF or settings.mqtts != OFF:
                await access.prepare_logins()
                await self.broker.create_topic(DEFAULT_TOPIC, exist_ok=True)
                await self._open_mqtt(context)
            self.broker.announce(self.addresses)
        except BaseException:
            await self.close()
            raise

    async def _apply_bindings(self) -> None:
        """What the settings bind is bound, after what was bound before."""
        for binding in self._settings.bindings:
            await self.broker.create_topic(binding.topic, exist_ok=True)
            await self.broker.bind(binding.filter, binding.topic)

    async def _open_mqtt(self, context: ssl.SSLContext | None) -> None:
        settings = self._settings
        access = self.broker.engine.access
        demands_client = settings.tls is not None and settings.tls.demands_client
        listeners = [
            (scheme, parse_address(address), wrap)
            for scheme, address, wrap in (
                ("mqtt", settings.mqtt, None),
                ("mqtts", settings.mqtts, context),
            )
            if address != OFF
        ]
        for _, (host, _), wrap in listeners:
            access.check_exposure(host, takes_anybody=wrap is None or not demands_client)
        self._keeper = Keeper(self.broker.engine, self.broker.engine.session_catalog)
        await self._keeper.open()
        exchange = Exchange(self.broker.engine, self._keeper)
        loop = asyncio.get_running_loop()
        self._mqtt = MqttDoor(exchange, self._selector, loop, settings.mqtt_limits)
        for scheme, (host, port), wrap in listeners:
            try:
                bound = self._mqtt.listen(host, port, wrap)
            except OSError as failed:
                raise UnavailableError(
                    f"{scheme} cannot listen on {host}:{port}: {failed.strerror or failed}; "
                    "choose another address, or stop what has this one"
                ) from failed
            self.addresses.append(f"{scheme}://{shown_address(*bound)}")

    async def close(self) -> None:
        """Close the doors first, the data directory last."""
        if self._mqtt is not None:
            self._mqtt.close()
            self._mqtt = None
        if self._keeper is not None:
            await self._keeper.close()
            self._keeper = None
        await self.broker.close()


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """How the TLS listener speaks; InvalidSetting when its files do not do."""
    tls = settings.tls
    if tls is None:
        return None
    return server_context(tls.cert, tls.key, tls.client_ca, demands_client=tls.demands_client)


def shown_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
