"""Web pages that talk to this server through somebody's browser, and which of them may.

A browser says in `Origin` whose page asks. Pages of this server and of the listed origins may;
others are rejected, also where reading the answer would not be needed to do harm. A browser sends
no `Origin` for an image or a link, but says in `Sec-Fetch-Site` that another site made it ask: such
a request may change nothing. While clients of this machine come in without a login, `Host` has to
be an address, `localhost` or a listed name: else a page could give its own name our address and be
accepted as one of them (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from penstock.doors.http.limits import ANY_ORIGIN
from penstock.doors.http.routing.router import Router
from penstock.doors.http.wire.messages import HttpError, Pairs, Request, Response
from penstock.model.errors import InvalidSetting

HOSTS_MAX: Final = 256  # remembered; a full memory starts anew
OWN_SITES: Final = (b"same-origin", b"none")  # a page of this server; no page at all

# A name or an address, and a port (RFC 9110 §7.2); a zone as browsers and programs write it.
_HOST: Final = re.compile(
    rb"(?:\[([0-9A-Fa-f:.]+(?:%[0-9A-Za-z._~-]+)?)\]|([A-Za-z0-9._~%!$&'()*+,;=-]*))(?::[0-9]*)?"
)


def parse_origins(key: str, value: object) -> list[str]:
    """The origins in a text with spaces or commas between; InvalidSetting names a wrong one."""
    if not isinstance(value, str):
        raise InvalidSetting(f"{key} {value!r} is not a string: write it in quotes")
    origins = value.replace(",", " ").split()
    for origin in origins:
        scheme, _, host = origin.partition("://")
        if origin != ANY_ORIGIN and not (scheme in ("http", "https") and host and "/" not in host):
            raise InvalidSetting(
                f"{key} {origin!r} is not an origin: write 'https://host' or "
                "'http://host:port', without a path"
            )
    return origins


class Pages:
    """The origins that may ask."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._any = ANY_ORIGIN in origins
        self._origins = {origin.lower() for origin in origins}
        self._names = {urlsplit(origin).hostname for origin in origins}
        self._hosts: dict[bytes, bool] = {}  # Host headers -> do they name this machine?

    def check_origin(self, request: Request) -> None:
        """HttpError 403 when a page asks that may not."""
        if b"origin" not in request.headers:
            return
        origin = request.header(b"origin").lower()
        if self._may(origin) or origin.partition("://")[2] == request.header(b"host").lower():
            return
        raise HttpError(
            403, f"web pages of {origin[:200]!r} have no access: add it to [http] origins"
        )

    def check_site(self, request: Request) -> None:
        """HttpError 403 when a page of another site makes a browser change something here."""
        site = request.headers.get(b"sec-fetch-site")
        if site is None or site in OWN_SITES or self._may(request.header(b"origin").lower()):
            return
        raise HttpError(
            403,
            f"{request.method} {request.path[:200]} would change data, but a web page of another "
            "site sent it: use a program or a page of this server, or add the origin of the page "
            "to [http] origins and use fetch()",
        )

    def check_host(self, request: Request, *, is_trusting: bool) -> None:
        """HttpError 400 when `Host` names no host.

        HttpError 421 when clients of this machine are trusted and this one calls us by a name that
        may belong to somebody else.
        """
        host = request.headers.get(b"host")
        if not host:  # HTTP/1.0; browsers always send it
            return
        is_local = self._hosts.get(host)
        if is_local is None:
            is_local = self._is_local(_host_name(host))
            if len(self._hosts) >= HOSTS_MAX:
                self._hosts.clear()
            self._hosts[host] = is_local
        if is_trusting and not is_local:
            raise HttpError(
                421,
                f"host {_host_name(host)[:200]!r} is neither an address nor localhost, and this "
                "server requires no login: use its address, add a user, or add the name to [http] "
                "origins",
            )

    def _is_local(self, name: str) -> bool:
        if name == "localhost" or name.endswith(".localhost") or name in self._names:
            return True
        with suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return self._any

    def _may(self, origin: str) -> bool:
        return self._any or origin in self._origins

    def headers(self, request: Request) -> Pairs:
        """What lets a page of another origin read the answer."""
        origin = request.header(b"origin")
        if not self._may(origin.lower()):
            return ()
        return (("Access-Control-Allow-Origin", origin), ("Vary", "Origin"))

    def options(self, request: Request, router: Router) -> Response:
        """Which methods a path has, and whether a page may use them."""
        methods = "GET, HEAD, OPTIONS, PATCH, POST, PUT, DELETE"
        if request.path != "*":
            methods = router.allowed(request.path)
        headers: Pairs = (("Allow", methods),)
        if b"origin" in request.headers:
            headers += self.preflight(request, methods)
        return Response(204, headers=headers)

    def preflight(self, request: Request, methods: str) -> Pairs:
        """What a page of another origin may ask for."""
        if not self._may(request.header(b"origin").lower()):
            return ()
        wanted = request.header(b"access-control-request-headers")
        found = (("Access-Control-Allow-Methods", methods), ("Access-Control-Max-Age", "600"))
        return (*found, ("Access-Control-Allow-Headers", wanted)) if wanted else found


def _host_name(host: bytes) -> str:
    """Name or address of a Host header, in lower case; HttpError 400 if it is missing."""
    parts = _HOST.fullmatch(host)
    if parts is None:
        raise HttpError(
            400,
            f"the Host header {host[:200].decode('latin-1')!r} is not valid: send a name or an "
            "address, and a port if needed, such as 'localhost:8090' or '[::1]:8090'",
        )
    return (parts[1] or parts[2] or b"").decode().lower()
