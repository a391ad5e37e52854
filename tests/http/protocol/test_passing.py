"""Does a node believe only what another node signed, and read only whole answers?"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.queue.readers import Elsewhere
from penstock.doors.http.passing.peer import BadAnswer, Peer
from penstock.doors.http.passing.seal import (
    SEAL,
    SIGNATURE,
    Seal,
    body_digest,
    passed_headers,
    read_seal,
    sign,
    target_of,
)
from penstock.doors.http.wire.messages import HttpError, Request

SECRET = bytes(range(32))
NOW_US = 1_700_000_000_000_000


def make_seal(**changed: Any) -> Seal:
    values: dict[str, Any] = {
        "sender": 1,
        "target": 2,
        "at_us": NOW_US,
        "tenant": "default",
        "user": "ann",
        "proof": "password",
        "roles": ("client",),
        "credential": "c",
        "expires_us": 0,
        "source": "192.0.2.7",
        "about": "default",
        "topics": 7,
        "headers": {"content-type": "application/json", "idempotency-key": "k"},
        "body": body_digest(b"{}"),
    }
    return Seal(**(values | changed))


def passed_on(seal: Seal, key: bytes = SECRET) -> Request:
    request: Any = Request(None, "POST", "/v1/topics/a/records", "name=x")  # type: ignore[arg-type]
    shown, signature = sign(key, request.method, target_of(request), seal)
    request.headers = {SEAL: shown, SIGNATURE: signature}
    return request  # type: ignore[no-any-return]


def test_a_node_reads_what_another_one_signed() -> None:
    assert read_seal(SECRET, passed_on(make_seal()), 2, NOW_US) == make_seal()


@given(st.data())
def test_whatever_is_changed_in_a_signed_request_it_is_refused(data: st.DataObject) -> None:
    request = passed_on(make_seal())
    part = data.draw(st.sampled_from(["method", "path", "query_text", "seal", "signature"]))
    if part in ("seal", "signature"):
        name = SEAL if part == "seal" else SIGNATURE
        value = bytearray(request.headers[name])
        at = data.draw(st.integers(0, len(value) - 1))
        value[at] ^= data.draw(st.integers(1, 255))
        request.headers[name] = bytes(value)
    else:
        setattr(request, part, getattr(request, part) + data.draw(st.sampled_from("x/?&")))
    with pytest.raises(HttpError) as refused:
        read_seal(SECRET, request, 2, NOW_US)
    assert refused.value.status == 403


def test_no_other_secret_and_no_missing_signature_is_believed() -> None:
    request = passed_on(make_seal())
    del request.headers[SIGNATURE]
    for one in (request, passed_on(make_seal(), b""), passed_on(make_seal(), SECRET[:-1])):
        with pytest.raises(HttpError) as refused:
            read_seal(SECRET, one, 2, NOW_US)
        assert refused.value.status == 403


def test_a_seal_holds_for_one_node_and_one_minute() -> None:
    with pytest.raises(Elsewhere):
        read_seal(SECRET, passed_on(make_seal()), 3, NOW_US)
    for late_us in (61_000_000, -61_000_000):
        with pytest.raises(HttpError, match="clocks"):
            read_seal(SECRET, passed_on(make_seal()), 2, NOW_US + late_us)


def test_only_headers_that_count_are_passed_on() -> None:
    request = passed_on(make_seal())
    request.headers |= {b"authorization": b"Basic x", b"accept": b"*/*", b"cookie": b"c"}
    assert passed_headers(request) == {"accept": "*/*"}


async def answered(data: bytes) -> Peer:
    """A connection to somebody who answers this and closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    return await Peer.connect(1, f"http://127.0.0.1:{port}", ssl.create_default_context())


async def test_an_answer_of_known_length_is_read() -> None:
    peer = await answered(
        b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 3\r\nX-Y: z\r\n\r\nabc"
    )
    head = await peer.ask(b"GET / HTTP/1.1\r\n\r\n", b"")
    assert (head.status, head.content_type, head.headers) == (200, "a/b", (("X-Y", "z"),))
    assert await peer.read_whole(head.length or 0) == b"abc"
    peer.close()
    assert not peer.is_usable


async def test_an_answer_in_chunks_is_read() -> None:
    peer = await answered(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b"3\r\nabc\r\n0\r\n\r\n"
    )
    head = await peer.ask(b"GET / HTTP/1.1\r\n\r\n", b"")
    assert head.length is None and not peer.is_usable
    assert await peer.chunk_length() == 3
    assert await peer.read_part(3) == b"abc"
    await peer.end_chunk()
    assert await peer.chunk_length() == 0
    peer.close()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", EOFError),
        (b"HTTP/1.1 200 OK\r\n", EOFError),
        (b"SSH-2.0-x\r\n\r\n", BadAnswer),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", BadAnswer),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", BadAnswer),
    ],
)
async def test_what_is_no_answer_breaks_the_connection(data: bytes, error: type[Exception]) -> None:
    peer = await answered(data)
    with pytest.raises(error):
        await peer.ask(b"GET / HTTP/1.1\r\n\r\n", b"")
    peer.close()


async def test_a_body_that_ends_early_is_no_body() -> None:
    peer = await answered(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc")
    await peer.ask(b"GET / HTTP/1.1\r\n\r\n", b"")
    with pytest.raises(EOFError):
        await peer.read_whole(5)
    peer.close()
