"""A broker with its doors open: what `penstock serve` runs."""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.app.aio import AsyncBroker
from penstock.broker.exchange import Exchange
from penstock.core.placement import DEFAULT_TOPIC
from penstock.doors.mqtt.door import MqttDoor
from penstock.doors.selector import DoorSelector
from penstock.model.errors import InvalidSetting

OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where to listen. `off` leaves a door closed."""

    data: Path
    mqtt: str = "127.0.0.1:1883"
    allow_anonymous: bool = False


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT; an IPv6 host stands in brackets."""
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdigit() or int(port) > 65_535:
        raise InvalidSetting(f"address {text!r} is not HOST:PORT, such as 127.0.0.1:1883")
    return host, int(port)


def check_exposure(host: str, *, allow_anonymous: bool) -> None:
    """Nobody has to log in, so only this machine may connect unless somebody wrote it down."""
    is_loopback = host == "localhost"
    with suppress(ValueError):  # a name, not an address
        is_loopback = is_loopback or ipaddress.ip_address(host).is_loopback
    if not is_loopback and not allow_anonymous:
        raise InvalidSetting(
            f"listening on {host} would let anybody in: listen on 127.0.0.1, "
            "or say --allow-anonymous"
        )


class Server:
    """The broker and its doors. Run it on the loop made by `make_loop`."""

    def __init__(self, settings: ServerSettings, selector: DoorSelector) -> None:
        self.broker = AsyncBroker(settings.data)
        self.addresses: list[str] = []
        self._settings = settings
        self._selector = selector
        self._mqtt: MqttDoor | None = None

    async def open(self) -> None:
        """Open the data directory first, the doors last."""
        settings = self._settings
        address = None
        if settings.mqtt != OFF:
            address = parse_address(settings.mqtt)
            check_exposure(address[0], allow_anonymous=settings.allow_anonymous)
        await self.broker.open()
        try:
            if address is not None:
                await self.broker.create_topic(DEFAULT_TOPIC, exist_ok=True)
                exchange = Exchange(self.broker.engine)
                self._mqtt = MqttDoor(exchange, self._selector, asyncio.get_running_loop())
                host, port = self._mqtt.listen(*address)
                self.addresses.append(f"mqtt://{host}:{port}")
            self.broker.announce(self.addresses)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the doors first, the data directory last."""
        if self._mqtt is not None:
            self._mqtt.close()
            self._mqtt = None
        await self.broker.close()


def make_loop(selector: DoorSelector) -> asyncio.AbstractEventLoop:
    """asyncio's loop on the selector that also serves the doors' sockets."""
    return asyncio.SelectorEventLoop(selector)
