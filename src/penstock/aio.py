"""`penstock.aio.connect(url)`: the client for asyncio programs."""

from __future__ import annotations

from typing import Any

from penstock.client.aio import AsyncClient


def connect(url: str, **options: Any) -> AsyncClient:
    """Use it with `async with`, or await `open` and `close`; options as of `penstock.connect`."""
    return AsyncClient(url, **options)
