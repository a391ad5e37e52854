"""The connection to the other broker: TCP or TLS, with backpressure in both directions."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from penstock.doors.bridge.settings import BridgeSettings
from penstock.doors.unreachable import unreachable
from penstock.model.errors import UnavailableError
from penstock.mqtt.endings import lost

CONNECT_S_MAX: Final = 30.0


class Wire(asyncio.Protocol):
    """Bytes from and to the other broker. Made by `dial`."""

    def __init__(self) -> None:
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_lost: Callable[[UnavailableError], None] = lambda error: None
        self.on_blocked: Callable[[bool], None] = lambda is_blocked: None
        loop = asyncio.get_running_loop()
        self._now_s = loop.time
        self.seen_s = self.sent_s = loop.time()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.seen_s = self._now_s()
        self.on_data(data)

    def connection_lost(self, failed: Exception | None) -> None:
        self.on_lost(lost(failed if isinstance(failed, OSError) else None))

    def pause_writing(self) -> None:
        self.on_blocked(True)

    def resume_writing(self) -> None:
        self.on_blocked(False)

    def write(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if not transport.is_closing():
            self.sent_s = self._now_s()
            transport.write(data)

    def want_read(self, wanted: bool) -> None:
        transport = self._transport
        assert transport is not None
        if transport.is_closing():
            return
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def close(self) -> None:
        """What was written is still sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


async def dial(settings: BridgeSettings, context: ssl.SSLContext | None) -> Wire:
    """Connect; UnavailableError says why that did not work."""
    where = settings.address
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            _, wire = await loop.create_connection(
                Wire, settings.host, settings.port, ssl=context, happy_eyeballs_delay=0.25
            )
    except TimeoutError:
        raise UnavailableError(
            f"cannot connect to {where}: no answer within {CONNECT_S_MAX:g} s"
        ) from None
    except OSError as failed:
        hint = "set tls_ca to the file with its CA"
        raise unreachable(where, failed, is_tls=context is not None, ca_hint=hint) from failed
    return wire
