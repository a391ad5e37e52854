"""Answers into bytes."""

from __future__ import annotations

from typing import Final

from penstock.doors.http.wire.messages import TITLES, Pairs, Response

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
UNSIZED: Final = -1

_heads: dict[tuple[int, str], bytes] = {}


def encode_head(
    status: int, content_type: str, length: int, date: bytes, headers: Pairs, *, is_kept: bool
) -> bytes:
    """Status line and headers; `length` may be UNSIZED, which says nothing of the body."""
    head = _heads.get((status, content_type))
    if head is None:
        head = _heads[status, content_type] = _first_lines(status, content_type)
    lines = b""
    if headers:
        lines = b"".join([f"{key}: {value}\r\n".encode() for key, value in headers])
    if length >= 0 and status != 204:
        lines += b"Content-Length: %d\r\n" % length
    if not is_kept:
        lines += b"Connection: close\r\n"
    return head + date + lines + b"\r\n"


def encode_response(
    response: Response, headers: Pairs, date: bytes, *, is_kept: bool, is_silent: bool
) -> bytes:
    """The whole answer; without the body if it is silent."""
    body = response.body
    head = encode_head(
        response.status, response.content_type, len(body), date, headers, is_kept=is_kept
    )
    return head if is_silent else head + body


def _first_lines(status: int, content_type: str) -> bytes:
    lines = f"HTTP/1.1 {status} {TITLES[status]}\r\nX-Content-Type-Options: nosniff\r\n"
    if status != 204:
        lines += f"Content-Type: {content_type}\r\n"
    return lines.encode()


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
