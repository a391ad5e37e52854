"""What do proxies say about their clients, and is anybody else believed?"""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.proxies import (
    PREFIX_BYTES,
    SIGNATURE,
    TrustedProxies,
    proxied_client,
    read_forwarded,
    rest_length,
)
from penstock.model.errors import PeerError

V4 = bytes((192, 0, 2, 1, 10, 0, 0, 9)) + bytes.fromhex("d431 22b3")
V6 = (
    ipaddress.ip_address("2001:db8::17").packed
    + ipaddress.ip_address("2001:db8::1").packed
    + bytes.fromhex("1267 22b3")
)


def header(command: int, family: int, rest: bytes) -> bytes:
    return SIGNATURE + bytes((command, family)) + len(rest).to_bytes(2, "big") + rest


def read(data: bytes) -> tuple[str, int] | None:
    prefix = data[:PREFIX_BYTES]
    return proxied_client(prefix, data[PREFIX_BYTES : PREFIX_BYTES + rest_length(prefix)])


# Golden vectors: never regenerated.
@pytest.mark.parametrize(
    ("data", "client"),
    [
        (
            "0d0a0d0a000d0a515549540a 21 11 000c c0000201 0a000009 d431 22b3",
            ("192.0.2.1", 54321),
        ),
        (
            "0d0a0d0a000d0a515549540a 21 21 0024 20010db8000000000000000000000017"
            "20010db8000000000000000000000001 1267 22b3",
            ("2001:db8::17", 4711),
        ),
        # With further values: type 0x04 (no operation) of 3 bytes.
        (
            "0d0a0d0a000d0a515549540a 21 11 0012 c0000201 0a000009 d431 22b3 04 0003 000000",
            ("192.0.2.1", 54321),
        ),
        ("0d0a0d0a000d0a515549540a 20 00 0000", None),  # LOCAL: a health check of the proxy
        ("0d0a0d0a000d0a515549540a 20 11 000c c0000201 0a000009 d431 22b3", None),
        ("0d0a0d0a000d0a515549540a 21 00 0000", None),  # the proxy does not know
    ],
)
def test_a_proxy_header_names_the_client(data: str, client: tuple[str, int] | None) -> None:
    assert read(bytes.fromhex(data)) == client


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 192.0.2.1 10.0.0.9 54321 8883\r\n",  # version 1
        b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04abcd",
        SIGNATURE[:-1] + b"\r" + bytes(4),
        header(0x11, 0x11, V4),  # version 1 in binary
        header(0x22, 0x11, V4),  # an unknown command
        header(0x21, 0x12, V4),  # UDP
        header(0x21, 0x31, bytes(216)),  # a Unix socket
        header(0x21, 0xFF, V4),
        header(0x21, 0x11, V4[:-1]),
        header(0x21, 0x21, V4),
        header(0x21, 0x21, V6[:-1]),
        header(0x21, 0x11, b""),
        header(0x21, 0x11, V4 + bytes(2_048)),
        SIGNATURE + b"\x21\x11\xff\xff",
    ],
)
def test_what_is_no_proxy_header_is_an_error_of_the_peer(data: bytes) -> None:
    with pytest.raises(PeerError):
        read(data)


@given(st.binary(max_size=80))
def test_any_bytes_are_an_address_or_an_error_of_the_peer(rest: bytes) -> None:
    for command in (0x20, 0x21):
        for family in (0x00, 0x11, 0x21, 0x31):
            try:
                client = read(header(command, family, rest))
            except PeerError:
                continue
            assert client is None or ipaddress.ip_address(client[0])


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("for=192.0.2.60;proto=http;by=203.0.113.43", ["192.0.2.60"]),  # RFC 7239 §4
        ('For="[2001:db8:cafe::17]:4711"', ["2001:db8:cafe::17"]),
        ("for=192.0.2.43, for=198.51.100.17", ["192.0.2.43", "198.51.100.17"]),
        ('for=192.0.2.43,for="198.51.100.17:80"', ["192.0.2.43", "198.51.100.17"]),
        ('by="a,b;for=1.2.3.4";for=192.0.2.1', ["192.0.2.1"]),
        ("for=unknown, for=_hidden", ["", ""]),
        ('for="_gazonk"', [""]),
        ("proto=https", [""]),
        ("", [""]),
        ("for=999.1.1.1", [""]),
        ("for=192.0.2.1 oops, for=192.0.2.2", [""]),
        ('for="192.0.2.1', [""]),
        ("for=192.0.2.1, =, for=192.0.2.2", ["192.0.2.1", ""]),
    ],
)
def test_forwarded_is_read_as_its_standard_says(text: str, nodes: list[str]) -> None:
    assert read_forwarded(text) == nodes


@given(st.text(alphabet='for=;,"\\[]: 1.2a_', max_size=60))
def test_any_forwarded_gives_addresses_or_nothing(text: str) -> None:
    for node in read_forwarded(text):
        assert not node or ipaddress.ip_address(node)


@pytest.mark.parametrize(
    ("source", "forwarded", "client"),
    [
        ("10.0.0.1", "for=192.0.2.1", "192.0.2.1"),
        ("192.0.2.9", "for=192.0.2.1", "192.0.2.9"),  # no proxy of ours
        ("10.0.0.1", "for=1.2.3.4, for=192.0.2.1", "192.0.2.1"),  # the client wrote the first
        ("10.0.0.1", "for=192.0.2.1, for=10.0.0.2", "192.0.2.1"),  # two proxies of ours
        ("10.0.0.1", "for=1.2.3.4, for=unknown", "10.0.0.1"),
        ("10.0.0.1", "for=1.2.3.4, nonsense", "10.0.0.1"),
        ("10.0.0.1", "for=10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.1", "for=192.0.2.1", "192.0.2.1"),
    ],
)
def test_the_client_is_the_nearest_address_that_is_no_proxy(
    source: str, forwarded: str, client: str
) -> None:
    proxies = TrustedProxies((ipaddress.ip_network("10.0.0.0/8"),))
    assert proxies.client_of(source, forwarded) == client
