"""Where a broker is and who we are there, as a URL says; and requests in the bytes of HTTP/1.1."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from penstock.core.masking import without_login
from penstock.model.errors import (
    OutcomeUnknown,
    PenstockError,
    RefusedError,
    UnavailableError,
)
from penstock.model.unix_socket import path_of


class Target:
    """What a URL says: where the broker is, and who we are there."""

    def __init__(
        self, url: str, user: str = "", password: str = "", token: str = "", tenant: str = ""
    ) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as wrong:  # an invalid port, or an incomplete IPv6 address
            raise _no_address(url, f" ({wrong})") from None
        self.socket_path = path_of(url)
        if self.socket_path is None and (
            parts.scheme not in ("http", "https") or not parts.hostname
        ):
            raise _no_address(url)
        self.url = url
        self.host = parts.hostname or "localhost"
        self.is_tls = parts.scheme == "https"
        self.port = port or (443 if self.is_tls else 80)
        self.tenant = tenant  # that an operator means; empty for one's own
        self.authorization = ""
        user = user or unquote(parts.username or "")
        password = password or unquote(parts.password or "")
        if token:
            self.authorization = f"Bearer {token}"
        elif user:
            pair = base64.b64encode(f"{user}:{password}".encode()).decode()
            self.authorization = f"Basic {pair}"

    @property
    def address(self) -> str:
        if self.socket_path is not None:
            return str(self.socket_path)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def encode(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """A request."""
        host = self.address if self.socket_path is None else self.host
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
        if self.authorization:
            lines.append(f"Authorization: {self.authorization}")
        if self.tenant:
            lines.append(f"Penstock-Tenant: {self.tenant}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def not_reached(self, failed: OSError) -> UnavailableError:
        """What to raise when nobody takes the connection."""
        return UnavailableError(
            f"cannot reach a broker at {self.address} ({str(failed) or 'no answer'}): "
            "start `penstock serve`, or check the address"
        )

    def answer_lost(self, failed: OSError, *, is_reading: bool, way_out: str = "") -> PenstockError:
        """What to raise when the connection broke after a request was sent."""
        why = f"the connection to {self.address} broke ({failed})"
        if isinstance(failed, TimeoutError):
            why = f"the broker at {self.address} did not answer"
        if is_reading:
            return UnavailableError(f"{why}: try again, or check that this is the address for HTTP")
        return OutcomeUnknown(
            f"{why} after the request was sent, so it may or may not have been carried out"
            f"{': ' * bool(way_out)}{way_out}"
        )


def _no_address(url: str, why: str = "") -> RefusedError:
    return RefusedError(
        f"{without_login(url)!r} is not a valid broker URL{why}: use http://HOST:PORT or "
        "https://HOST:PORT, with a port up to 65535"
    )
