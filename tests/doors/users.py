"""Users of a data directory that no broker has open yet."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.app.users import open_users


def add_users(data: Path, **passwords: str) -> None:
    async def main() -> None:
        async with open_users(data) as access:
            for user, password in passwords.items():
                await access.add_user(user, password.encode())

    asyncio.run(main())
