"""Web pages that talk to this server through somebody's browser, and which of them may.

A browser says in `Origin` whose page asks. Pages of this server and of the listed origins may;
others are refused, also where reading the answer would not be needed to do harm. While clients of
this machine come in without a login, `Host` has to be an address, `localhost` or a listed name:
else a page could give its own name our address and be let in as one of them.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from urllib.parse import urlsplit

from penstock.doors.http.limits import ANY_ORIGIN
from penstock.doors.http.messages import HttpError, Pairs, Request
from penstock.model.errors import InvalidSetting

HOSTS_MAX = 256  # remembered; a full memory starts anew


def parse_origins(key: str, value: object) -> list[str]:
    """The origins in a text with spaces or commas between; InvalidSetting names a wrong one."""
    if not isinstance(value, str):
        raise InvalidSetting(f"{key} {value!r} is not a text: write it in quotes")
    origins = value.replace(",", " ").split()
    for origin in origins:
        scheme, _, host = origin.partition("://")
        if origin != ANY_ORIGIN and not (scheme in ("http", "https") and host and "/" not in host):
            raise InvalidSetting(
                f"{key} {origin!r} is not an origin: write 'https://host' or "
                "'http://host:port', with no path behind it"
            )
    return origins


class Pages:
    """The origins that may ask."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._any = ANY_ORIGIN in origins
        self._origins = {origin.lower() for origin in origins}
        self._names = {urlsplit(origin).hostname for origin in origins}
        self._local: set[bytes] = set()  # Host headers that name this machine

    def check_origin(self, request: Request) -> None:
        """HttpError 403 when a page asks that may not."""
        if b"origin" not in request.headers:
            return
        origin = request.header(b"origin").lower()
        if self._may(origin) or origin.partition("://")[2] == request.header(b"host").lower():
            return
        raise HttpError(
            403, f"pages of {origin[:200]!r} may not ask here: add it to [http] origins"
        )

    def check_host(self, request: Request) -> None:
        """HttpError 421 when a client that is let in for being local calls us by another name."""
        host = request.headers.get(b"host", b"")
        if host in self._local or not host:
            return
        name = urlsplit(f"//{host.decode('latin-1')}").hostname or ""
        if not self._is_local(name):
            raise HttpError(
                421,
                f"host {name[:200]!r} is neither an address nor localhost, and nobody logs in "
                "here: ask by address, add a user, or add the name to [http] origins",
            )
        if len(self._local) >= HOSTS_MAX:
            self._local.clear()
        self._local.add(host)

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

    def preflight(self, request: Request, methods: str) -> Pairs:
        """What a page of another origin may ask for."""
        if not self._may(request.header(b"origin").lower()):
            return ()
        wanted = request.header(b"access-control-request-headers")
        found = (("Access-Control-Allow-Methods", methods), ("Access-Control-Max-Age", "600"))
        return (*found, ("Access-Control-Allow-Headers", wanted)) if wanted else found
