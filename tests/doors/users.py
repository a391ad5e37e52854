"""Users of a data directory that no broker has open yet."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.app.users import open_users
from penstock.broker.settings import make_settings
from penstock.config import load, server_settings
from tests import on_kafka


def add_users(data: Path, **passwords: str) -> None:
    async def main() -> None:
        loaded = server_settings(load(None, {"server.data": str(data), **on_kafka.flags_of(data)}))
        async with open_users(data, make_settings(loaded.broker)) as access:
            for user, password in passwords.items():
                await access.add_user(user, password.encode())

    asyncio.run(main())
