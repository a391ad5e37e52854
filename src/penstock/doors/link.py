"""A connection of any protocol and the wire below it, as each sees the other."""

from __future__ import annotations

from typing import Protocol

from penstock.model.certificate import Certificate


class Wired(Protocol):
    """A connection, as the link that carries its bytes sees it."""

    is_closed: bool

    def receive(self, data: bytes) -> None:
        """Bytes from the peer; never empty."""
        ...

    def on_writable(self) -> None:
        """The link takes more."""
        ...

    def close(self) -> None:
        """The peer is gone, or has to go."""
        ...


class Link(Protocol):
    """The wire below a connection."""

    @property
    def source(self) -> str:
        """The address the client comes from."""
        ...

    @property
    def peer(self) -> str:
        """Address and port of the client, for people."""
        ...

    @property
    def certificate(self) -> Certificate | None:
        """What the client showed, signed by an authority that the listener trusts."""
        ...

    def send(self, data: bytes | memoryview) -> int:
        """Take what fits now; how many bytes. OSError when the peer is gone."""
        ...

    def want_write(self, wanted: bool) -> None:
        """Have `Wired.on_writable` called as soon as more fits, or no longer."""
        ...

    def want_read(self, wanted: bool) -> None: ...

    def close_after(self, data: bytes) -> None:
        """Send this and close, once the peer has had time to read it (doors.lingering).

        The connection released the link: nothing more is received or sent for it.
        """
        ...

    def close(self) -> None: ...


def shown_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shown_peer(peer: object) -> str:
    """What `getpeername` returns, for people."""
    if isinstance(peer, tuple) and len(peer) >= 2:
        return shown_address(str(peer[0]), peer[1])
    return "this machine" if peer == "" else "an unknown address"  # '' is a Unix socket
