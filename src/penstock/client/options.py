"""The options of `connect`, of both kinds of clients."""

from __future__ import annotations

import ssl
from typing import TypedDict


class ClientOptions(TypedDict, total=False):
    """As `AsyncClient` takes them, with its defaults."""

    user: str
    password: str
    token: str
    tenant: str
    tls: ssl.SSLContext | None
    patience_s: float
    heartbeat_s: float
