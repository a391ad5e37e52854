"""Which partition a name belongs to: the same one that Kafka's Java clients choose for this key."""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFF_FFFF


def murmur2(data: bytes) -> int:
    """MurmurHash2 of the bytes as 32 bits without sign, with the seed of Kafka's clients."""
    length = len(data)
    hashed = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little")
        word = word * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ word
    if length > whole:
        hashed ^= int.from_bytes(data[whole:], "little")
        hashed = hashed * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def partition_of(key: bytes, count: int) -> int:
    """The partition of a key in a topic of `count` partitions."""
    return (murmur2(key) & 0x7FFF_FFFF) % count
