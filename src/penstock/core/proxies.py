"""Whose word about a client's address counts, and what a proxy says about it.

A proxy says it in one of two ways: a header of the PROXY protocol, version 2, before anything else
on the connection (haproxy's proxy-protocol.txt §2.2), or the header `Forwarded` of an HTTP request
(RFC 7239). Both count only if they come from a network that the operator trusts: anybody can write
them.
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from typing import Final

from penstock.model.errors import InvalidSetting, PeerError

Address = tuple[str, int]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
PREFIX_BYTES: Final = 16  # signature, version and command, family, length
REST_BYTES_MAX: Final = 2_048  # addresses and what else proxies tell: certificates, endpoints

_LOCAL: Final = 0x20
_PROXY: Final = 0x21
_UNSPECIFIED: Final = 0x00
_TCP4: Final = 0x11
_TCP6: Final = 0x21
_TCP4_BYTES: Final = 12
_TCP6_BYTES: Final = 36

_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_PAIR: Final = re.compile(rf"({_TOKEN})=({_TOKEN}|{_QUOTED})")
_NODE: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::([0-9]{1,5}|_[\w.\-]+))?")


class TrustedProxies:
    """The networks of proxies whose word counts."""

    def __init__(self, networks: tuple[Network, ...] = ()) -> None:
        self._networks = networks

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, source: str) -> bool:
        if not self._networks:
            return False
        with suppress(ValueError):
            address = ipaddress.ip_address(source.partition("%")[0])
            mapped = getattr(address, "ipv4_mapped", None)
            return any((mapped or address) in network for network in self._networks)
        return False

    def client_of(self, source: str, forwarded: str) -> str:
        """Who asks, if `source` sent this `Forwarded`: the nearest address that is no proxy's.

        What cannot be read, or is hidden on purpose, ends the search: the last proxy stands for it.
        """
        for node in reversed(read_forwarded(forwarded)):
            if not self.trusts(source) or not node:
                break
            source = node
        return source


NO_PROXIES: Final = TrustedProxies()


def parse_networks(key: str, text: str) -> tuple[Network, ...]:
    """Addresses and networks, separated by spaces; InvalidSetting names the wrong one."""
    networks = []
    for part in text.split():
        try:
            networks.append(ipaddress.ip_network(part))
        except ValueError:
            raise InvalidSetting(
                f"{key} {part!r} is not a network: write an address or a network, such as "
                "10.0.0.5 or 10.0.0.0/8, with no bits set behind the prefix"
            ) from None
    return tuple(networks)


def rest_length(prefix: bytes) -> int:
    """How many bytes follow the first PREFIX_BYTES; PeerError if it is no header of version 2."""
    if not prefix.startswith(SIGNATURE):
        raise PeerError("a proxy sent no header of the PROXY protocol, version 2")
    if prefix[12] not in (_LOCAL, _PROXY):
        raise PeerError(f"version and command 0x{prefix[12]:02x} of a PROXY header are unknown")
    length = int.from_bytes(prefix[14:16], "big")
    if length > REST_BYTES_MAX:
        raise PeerError(f"a PROXY header of {length} bytes is longer than {REST_BYTES_MAX}")
    return length


def proxied_client(prefix: bytes, rest: bytes) -> Address | None:
    """The client's address; None if the proxy speaks for itself or does not know it."""
    if prefix[12] == _LOCAL or prefix[13] == _UNSPECIFIED:
        return None
    size = {_TCP4: _TCP4_BYTES, _TCP6: _TCP6_BYTES}.get(prefix[13])
    if size is None:
        raise PeerError(f"family 0x{prefix[13]:02x} of a PROXY header is not TCP over IP")
    if len(rest) < size:
        raise PeerError(f"a PROXY header with {len(rest)} bytes of addresses, not {size}")
    host = rest[: (size - 4) // 2]
    port = int.from_bytes(rest[size - 4 : size - 2], "big")
    return str(ipaddress.ip_address(host)), port


def read_forwarded(text: str) -> list[str]:
    """The addresses of `for=`, the oldest first; '' for one that is hidden or cannot be read."""
    nodes = []
    at = 0
    while at <= len(text):
        node, at = _read_element(text, at)
        nodes.append(node)
    return nodes


def _read_element(text: str, at: int) -> tuple[str, int]:
    """What one element says, and where the next begins; a broken one takes all that follows."""
    node = ""
    while True:
        while at < len(text) and text[at] in " \t;":
            at += 1
        if at >= len(text):
            return node, len(text) + 1
        if text[at] == ",":
            return node, at + 1
        pair = _PAIR.match(text, at)
        if pair is None:
            return "", len(text) + 1
        if pair[1].lower() == "for":
            node = _address(pair[2])
        at = pair.end()
        if at < len(text) and text[at] not in " \t;,":
            return "", len(text) + 1


def _address(value: str) -> str:
    if value.startswith('"'):
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    found = _NODE.fullmatch(value)
    if found is not None:
        with suppress(ValueError):
            return str(ipaddress.ip_address(found[1] or found[2]))
    return ""
