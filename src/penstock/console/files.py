"""The files of the console: the same for everybody, and nothing of the broker is in them."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Final, NamedTuple

STATIC: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class ConsoleFile(NamedTuple):
    content: bytes
    packed: bytes  # with gzip, a third of the size
    content_type: str
    tag: str  # changes with the content


class ConsoleFiles:
    """Each is read when it is first asked for."""

    def __init__(self) -> None:
        self._read: dict[str, ConsoleFile] = {}

    def find(self, name: str) -> ConsoleFile | None:
        """None if the console has no such file."""
        found = self._read.get(name)
        if found is None:
            if name not in [path.name for path in STATIC.iterdir()]:
                return None
            content = (STATIC / name).read_bytes()
            tag = hashlib.sha256(content).hexdigest()[:16]
            packed = gzip.compress(content, mtime=0)
            found = ConsoleFile(content, packed, TYPES[Path(name).suffix], tag)
            self._read[name] = found
        return found
