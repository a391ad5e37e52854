"""What a connection remembers of its last request: the next one with the same head is let in alike.

Clients send the same path and the same credentials again and again. Whatever else a decision about
a request depends on is in `DECIDING`, and such a request is judged anew, as is every request after
a change of users, keys, roles, rules or tenants (`Access.edition`).
Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations

from typing import Final

from penstock.core.access import Principal
from penstock.doors.http.passing.seal import SEAL
from penstock.doors.http.routing.endpoints import TENANT_HEADER
from penstock.doors.http.routing.router import Route
from penstock.doors.http.wire.messages import Request

_AUTHORIZATION: Final = b"authorization"
_HOST: Final = b"host"
DECIDING: Final = frozenset(
    (b"content-encoding", b"forwarded", b"origin", b"sec-fetch-site", SEAL, TENANT_HEADER)
)


class Admitted:
    """A head that was let in, and what it means."""

    __slots__ = (
        "_authorization",
        "_edition",
        "_host",
        "_method",
        "_params",
        "_path",
        "_principal",
        "_route",
    )

    def __init__(self, request: Request, edition: int) -> None:
        self._edition = edition
        self._method = request.method
        self._path = request.path
        self._host = request.headers.get(_HOST)
        self._authorization = request.headers.get(_AUTHORIZATION)
        self._params = request.params
        self._principal: Principal = request.principal
        self._route: Route = request.route

    def lets_in(self, request: Request, edition: int) -> bool:
        """Set route, parameters and principal of a request with the same head; False of another."""
        headers = request.headers
        if (
            self._edition != edition
            or self._path != request.path
            or self._method != request.method
            or self._host != headers.get(_HOST)
            or self._authorization != headers.get(_AUTHORIZATION)
            or not DECIDING.isdisjoint(headers)
        ):
            return False
        request.route = self._route
        request.params = self._params
        request.principal = self._principal
        return True


def admit_alike(request: Request, edition: int) -> Admitted | None:
    """What to remember of a request that was let in.

    Nothing of one with a token, which expires, or with a certificate: their principals are
    forgotten if nobody uses them. Nor of one whose other headers decided.
    """
    is_passing = request.expires_us or request.asker.certificate is not None
    if is_passing or request.passed or not DECIDING.isdisjoint(request.headers):
        return None
    return Admitted(request, edition)
