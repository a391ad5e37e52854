"""Frames on the bus's socket: length, kind, id, bytes. The same for both directions.

| bytes | what |
|---|---|
| 4 | length of all that follows, big-endian |
| 1 | kind |
| 2 | bus id |
| rest | data of a message; or the class of a refusal, a newline, and why, as UTF-8 |

A process sends SUBSCRIBE, UNSUBSCRIBE and PUBLISH; each is answered, in order, by DONE or REFUSED.
The broker sends CALL whenever a handler is to be called.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from penstock.model import errors
from penstock.model.errors import PeerError, PenstockError, RefusedError
from penstock.model.limits import MIB

SUBSCRIBE: Final = 1
UNSUBSCRIBE: Final = 2
PUBLISH: Final = 3
DONE: Final = 4
REFUSED: Final = 5
CALL: Final = 6

DATA_BYTES_MAX: Final = 16 * MIB
_HEAD: Final = struct.Struct(">IBH")
_LENGTH_BYTES: Final = 4


class Frame(NamedTuple):
    """One thing said on the socket."""

    kind: int
    id: int
    data: bytes


def encode_frame(kind: int, id: int, data: bytes = b"") -> bytes:
    return _HEAD.pack(_HEAD.size - _LENGTH_BYTES + len(data), kind, id) + data


def encode_refusal(id: int, refusal: PenstockError) -> bytes:
    return encode_frame(REFUSED, id, f"{type(refusal).__name__}\n{refusal}".encode())


def decode_refusal(data: bytes) -> PenstockError:
    """The error of the other side, as the class it has there."""
    name, _, text = data.decode(errors="replace").partition("\n")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        return kind(text)
    return RefusedError(text)


class FrameReader:
    """Bytes in, whole frames out; PeerError when the other side does not speak this."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        held = self._held
        held += data
        frames = []
        at = 0
        while len(held) - at >= _HEAD.size:
            length, kind, id = _HEAD.unpack_from(held, at)
            size = length - (_HEAD.size - _LENGTH_BYTES)
            if not 0 <= size <= DATA_BYTES_MAX or not SUBSCRIBE <= kind <= CALL:
                raise PeerError(
                    f"a frame of {length} bytes and kind {kind} is not a frame of the bus"
                )
            end = at + _HEAD.size + size
            if len(held) < end:
                break
            frames.append(Frame(kind, id, bytes(held[at + _HEAD.size : end])))
            at = end
        del held[:at]
        return frames
