"""Unix sockets at paths of any length: their addresses have room for 107 bytes only."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

ADDRESS_BYTES_MAX: Final = 107
SCHEME: Final = "unix://"


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """What to bind or connect to in place of `path`, while the context is open."""
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield str(path)
        return
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


def connect(path: Path, connect_s_max: float) -> socket.socket:
    """A connection to whoever listens at `path`; OSError if nobody does."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(connect_s_max)
        with short_address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def url_of(path: Path) -> str:
    """The URL of a socket: `unix:///absolute/path`."""
    return SCHEME + quote(str(path.absolute()))


def path_of(url: str) -> Path | None:
    """The path that such a URL names; None for every other URL."""
    path = unquote(url.removeprefix(SCHEME))
    return Path(path) if url.startswith(SCHEME) and path.startswith("/") else None
