"""`penstock.aio.connect(url)`: the client for asyncio programs."""

from __future__ import annotations

from typing import Unpack

from penstock.client.aio import AsyncClient
from penstock.client.options import ClientOptions


def connect(url: str, **options: Unpack[ClientOptions]) -> AsyncClient:
    """Use it with `async with`, or await `open` and `close`; options as of `penstock.connect`."""
    return AsyncClient(url, **options)
