"""The wire below an MQTT connection, as the connection sees it: a socket, TLS or a WebSocket.

What a link does not take stays with its connection, which bounds it.
"""

from __future__ import annotations

from typing import Protocol


class Link(Protocol):
    """The wire below a connection."""

    @property
    def source(self) -> str:
        """The address the client comes from."""
        ...

    @property
    def certified_name(self) -> str | None:
        """Whose certificate the client showed; None without one, empty if it names nobody."""
        ...

    def send(self, data: bytes | memoryview) -> int:
        """Take what fits now; how many bytes. OSError when the peer is gone."""
        ...

    def want_write(self, wanted: bool) -> None:
        """Have `Connection.on_writable` called as soon as more fits, or no longer."""
        ...

    def want_read(self, wanted: bool) -> None: ...

    def close(self) -> None: ...
