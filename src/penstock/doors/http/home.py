"""`/`: a page for people who open the server's address in a browser."""

from __future__ import annotations

from html import escape
from typing import Final

from penstock.doors.http.endpoints import Endpoints
from penstock.doors.http.messages import Request, Response
from penstock.doors.http.needs import Needs
from penstock.doors.http.router import Route
from penstock.doors.http.v1.openapi import PATH as OPENAPI
from penstock.model.version import VERSION

HTML: Final = "text/html; charset=utf-8"
# The page loads nothing, runs nothing, sends nothing and is shown in nobody's frame.
HEADERS: Final = (
    (
        "Content-Security-Policy",
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
)
LINKS: Final = (
    (OPENAPI, "OpenAPI", "the HTTP interface, as a document for tools"),
    ("/v1/topics", "Topics", "the topics of this broker, as JSON"),
    ("/metrics", "Metrics", "counters and gauges for Prometheus"),
    ("/healthz", "Health", "whether the process answers"),
    ("/readyz", "Readiness", "whether publishes are accepted, and if not, why"),
)
_PAGE: Final = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Penstock</title>
</head>
<body>
<h1>Penstock {version}</h1>
<p>A durable publish/subscribe broker. MQTT clients connect to the MQTT address of this server,
or to <code>/mqtt</code> here with WebSocket.</p>
<ul>
{links}
</ul>
<p>The commands <code>penstock --help</code>, <code>penstock pub</code> and
<code>penstock sub</code> are a way to begin. The documentation is in the folder
<code>docs</code> of the source.</p>
</body>
</html>
"""


def add_routes(door: Endpoints) -> None:
    response = Response(200, page().encode(), HTML, HEADERS)

    def show(request: Request) -> Response:
        return response

    door.router.add(Route("GET", "/", show, needs=Needs.LOGIN))


def page() -> str:
    links = "\n".join(
        f'<li><a href="{escape(path)}">{escape(name)}</a>: {escape(says)}</li>'
        for path, name, says in LINKS
    )
    return _PAGE.format(version=escape(VERSION), links=links)
