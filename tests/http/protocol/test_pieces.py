"""Is JSON that is made piece by piece the same as JSON that is made at once?"""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.doors.http.v1.reading import long_or_short, record_out
from penstock.doors.http.wire.pieces import (
    PIECE_BYTES,
    base64_pieces,
    list_pieces,
    page_pieces,
    text_pieces,
)
from penstock.model.record import KIND_BYTES, KIND_JSON, KIND_TEXT, Record

PADDING = st.integers(0, 3).map(lambda count: "a" * count)
LENGTHS = st.sampled_from([0, 1, 100, PIECE_BYTES // 4, PIECE_BYTES, 3 * PIECE_BYTES])


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Some with long payloads, in which characters lie across the borders of pieces."""
    char = draw(st.sampled_from(['"', "\\", "\x01", "é", "€", "😀", "\n", '"payload":""']))
    text = draw(PADDING) + char * (draw(LENGTHS) // len(char.encode()) + 1)
    kind = draw(st.sampled_from([KIND_TEXT, KIND_JSON, KIND_BYTES]))
    payload = text.encode()
    if kind == KIND_JSON:
        payload = msgspec.json.encode([text])
    elif kind == KIND_BYTES and draw(st.booleans()):
        payload += b"\xff"
    headers = ((char, char),) if draw(st.booleans()) else ()
    return Record("t", 0, draw(st.integers(0, 99)), 1, f"t/{char}", payload, headers, kind=kind)


@given(st.lists(records(), max_size=6))
def test_a_list_of_records(found: list[Record]) -> None:
    whole = msgspec.json.encode([record_out(one) for one in found])
    pieces = list(list_pieces(map(long_or_short, found)))
    assert b"[" + b"".join(pieces) + b"]" == whole
    assert max(map(len, pieces), default=0) <= 7 * PIECE_BYTES
    page = b"".join(page_pieces(b'{"records":[', map(long_or_short, found)))
    assert json.loads(page) == {"records": json.loads(whole)}


@given(st.binary(max_size=40), LENGTHS)
def test_bytes_that_are_no_text(some: bytes, count: int) -> None:
    payload = b"\xf0\x9f\x98" + b"x" * count + some
    shown = b'"' + b"".join(text_pieces(payload, "replace")) + b'"'
    assert json.loads(shown) == payload.decode(errors="replace")
    assert (
        msgspec.json.decode(b'"' + b"".join(base64_pieces(payload)) + b'"', type=bytes) == payload
    )
