"""Which clients count as one: those of one IPv4 address, or of one IPv6 network of 64 bits."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from functools import lru_cache
from typing import Final

SUBSCRIBER_BITS: Final = 64  # what a provider gives one IPv6 subscriber, at the least


def network_of(source: str) -> str:
    """The network that the bounds per address count for; an unknown address is its own."""
    with suppress(ValueError):
        address = ipaddress.ip_address(source.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            if address.ipv4_mapped is not None:
                return str(address.ipv4_mapped)
            return str(ipaddress.ip_network((address, SUBSCRIBER_BITS), strict=False))
    return source


def network_of_peer(peer: str) -> str:
    """The network of an address as it is shown to people, with or without a port."""
    if peer.startswith("["):
        return network_of(peer[1:].partition("]")[0])
    return network_of(peer.partition(":")[0] if peer.count(":") == 1 else peer)


@lru_cache(maxsize=1_024)  # asked for every HTTP request of a broker without users
def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    with suppress(ValueError):  # a name, not an address
        return ipaddress.ip_address(host).is_loopback
    return False
