"""`/` and `/console/…`: the files of the console, for browsers.

They are the same for everybody and hold nothing of the broker, so they are answered without a
login. What the pages show they ask `/v1` for, with the credentials of who signed in.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from penstock.doors.http.endpoints import Endpoints
from penstock.doors.http.messages import HttpError, Request, Response
from penstock.doors.http.router import Route

STATIC: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The pages load and ask only this server, run no script of others and are shown in nobody's frame.
SECURITY: Final = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
)


def add_routes(door: Endpoints) -> None:
    files = ConsoleFiles()
    for path, handler in (("/", files.index), ("/console/{file}", files.show)):
        door.router.add(Route("GET", path, handler, is_open=True))


class ConsoleFiles:
    """Each is read when it is first asked for."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[bytes, str]] = {}  # content and ETag

    def index(self, request: Request) -> Response:
        return self._answer(request, INDEX)

    def show(self, request: Request) -> Response:
        return self._answer(request, request.params["file"])

    def _answer(self, request: Request, name: str) -> Response:
        content, tag = self._find(name)
        headers = (*SECURITY, ("Cache-Control", "no-cache"), ("ETag", tag))
        if request.header(b"if-none-match") == tag:
            return Response(304, headers=headers)
        return Response(200, content, TYPES[Path(name).suffix], headers)

    def _find(self, name: str) -> tuple[bytes, str]:
        found = self._read.get(name)
        if found is None:
            if name not in [path.name for path in STATIC.iterdir()]:
                raise HttpError(404, f"the console has no file {name[:200]!r}")
            content = (STATIC / name).read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found = self._read[name] = content, tag
        return found
