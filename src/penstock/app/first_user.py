"""The first user of a new broker, as settings name it: a container has nobody to ask."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from penstock.broker.access import Access
from penstock.config import FirstUser
from penstock.model.errors import InvalidSetting

LOG: Final = logging.getLogger("penstock.server")


async def add_first_user(access: Access, first: FirstUser | None) -> None:
    """Add it as administrator, unless a user exists: later starts change nothing."""
    if first is None or access.users():
        return
    await access.add_user(first.name, _read(first.password_file))
    values = {"event": "first user added", "user": first.name}
    LOG.info("the first user %(user)r was added; it is an administrator", values)


def _read(path: Path) -> bytes:
    """The first line of the file, without its end."""
    try:
        with path.open("rb") as file:
            password = file.readline().rstrip(b"\r\n")
    except OSError as failed:
        raise InvalidSetting(
            f"[access] first_password_file {str(path)!r} cannot be read: {failed.strerror}; its "
            "first line must be the password of first_user"
        ) from failed
    if not password:
        raise InvalidSetting(
            f"[access] first_password_file {str(path)!r} begins with an empty line: its first "
            "line must be the password of first_user"
        )
    return password
