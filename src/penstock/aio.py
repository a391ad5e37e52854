"""`penstock.aio.connect(url)`: the client for asyncio programs."""

from __future__ import annotations

import ssl

from penstock.client.aio import HEARTBEAT_S, AsyncClient
from penstock.client.repeating import PATIENCE_S


def connect(
    url: str,
    *,
    user: str = "",
    password: str = "",
    token: str = "",
    tenant: str = "",
    tls: ssl.SSLContext | None = None,
    patience_s: float = PATIENCE_S,
    heartbeat_s: float = HEARTBEAT_S,
) -> AsyncClient:
    """Use it with `async with`, or await `open` and `close`; options as of `penstock.connect`."""
    return AsyncClient(
        url,
        user=user,
        password=password,
        token=token,
        tenant=tenant,
        tls=tls,
        patience_s=patience_s,
        heartbeat_s=heartbeat_s,
    )
