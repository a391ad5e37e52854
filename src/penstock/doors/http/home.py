"""`/` and `/console/…`: the console, for browsers.

Its files are answered without a login. What the pages show they ask `/v1` for, with the credentials
of who signed in.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.console.files import INDEX, ConsoleFiles
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.router import Route
from penstock.doors.http.wire.messages import HttpError, Request, Response

# The pages load and ask only this server, run no script of others and are shown in nobody's frame.
SECURITY: Final = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
)
# A browser that takes gzip, and does not say that it would rather not.
GZIP: Final = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", re.IGNORECASE)


def add_routes(door: Endpoints) -> None:
    home = Home()
    for path, handler in (("/", home.index), ("/console/{file}", home.show)):
        door.router.add(Route("GET", path, handler, is_open=True))


class Home:
    def __init__(self) -> None:
        self._files = ConsoleFiles()

    def index(self, request: Request) -> Response:
        return self._answer(request, INDEX)

    def show(self, request: Request) -> Response:
        return self._answer(request, request.params["file"])

    def _answer(self, request: Request, name: str) -> Response:
        file = self._files.find(name)
        if file is None:
            raise HttpError(404, f"the console has no file {name[:200]!r}")
        takes_gzip = GZIP.search(request.header(b"accept-encoding")) is not None
        tag = f'"{file.tag}-gzip"' if takes_gzip else f'"{file.tag}"'
        cached = (("Cache-Control", "no-cache"), ("ETag", tag), ("Vary", "Accept-Encoding"))
        headers = (*SECURITY, *cached)
        if request.header(b"if-none-match") == tag:
            return Response(304, headers=headers)
        if takes_gzip:
            packed = (*headers, ("Content-Encoding", "gzip"))
            return Response(200, file.packed, file.content_type, packed)
        return Response(200, file.content, file.content_type, headers)
