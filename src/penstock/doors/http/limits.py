"""What an operator can say about HTTP clients, and the bounds that nobody needs to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.doors.lingering import LINGER_BYTES_MAX, LINGER_S_MAX
from penstock.model.limits import KIB, MIB

ANY_ORIGIN: Final = "*"
LOGIN: Final = "login"  # whoever is let in
ADMIN: Final = "admin"
OPEN: Final = "open"  # everybody, without a login
METRICS_READERS: Final = (LOGIN, ADMIN, OPEN)

HEADERS_MAX: Final = 100  # of one request
TARGET_BYTES_MAX: Final = 8 * KIB  # path and query
HEAD_BYTES_MAX: Final = 32 * KIB  # request line and headers
WAITING_MAX: Final = 32  # requests of one client that came before the one before was answered
WAITING_BYTES_MAX: Final = 64 * KIB  # of bodies and long heads; then the client is not read
OUT_BYTES_ROOM: Final = 256 * KIB  # above it nothing new is begun or streamed for the client
STRANGER_OUT_BYTES_ROOM: Final = 16 * KIB  # the same before a client has logged in
CROWDED_S_MAX: Final = 5.0  # for a client that takes nothing while large answers wait for room
UNSENT_BYTES_MAX: Final = 256 * MIB  # of all clients together; then who has the most is let go
BODIES_BYTES_MAX: Final = 256 * MIB  # of all clients together, while they arrive and are answered


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Settings of the HTTP door, except the addresses."""

    connections_max: int = 10_000
    body_bytes_max: int = 32 * MIB  # of one request: the largest message, in base64 and JSON
    head_s_max: float = 10.0  # for the request line and the headers
    body_s_max: float = 60.0  # for the body
    idle_s_max: float = 75.0  # between two requests
    send_s_max: float = 30.0  # for a client that takes nothing of its answer
    ping_s: int = 30  # of silence in a WebSocket; then its peer is pinged, after as much again cut
    linger_s_max: float = LINGER_S_MAX  # for a client that is refused or closed to read why
    proxy_protocol: bool = False  # trusted proxies begin connections with a PROXY header
    linger_bytes_max: int = LINGER_BYTES_MAX  # that it still sends meanwhile
    stop_s_max: float = 10.0  # for requests under way when the server stops
    metrics: str = LOGIN  # one of METRICS_READERS
    origins: tuple[str, ...] = ()  # allowed origins of web pages, besides this server's own

    @staticmethod
    def has_room(out_bytes: int, *, is_known: bool) -> bool:
        """Is a request begun for a client that has not taken so much of its answers yet?"""
        return out_bytes < (OUT_BYTES_ROOM if is_known else STRANGER_OUT_BYTES_ROOM)


DEFAULT_LIMITS: Final = HttpLimits()
