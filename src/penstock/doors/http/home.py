"""`/` and `/console/…`: the console, for browsers.

Its files are answered without a login. What the pages show they ask `/v1` for, with the credentials
of who signed in.
"""

from __future__ import annotations

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
        tag = f'"{file.tag}"'
        headers = (*SECURITY, ("Cache-Control", "no-cache"), ("ETag", tag))
        if request.header(b"if-none-match") == tag:
            return Response(304, headers=headers)
        return Response(200, file.content, file.content_type, headers)
