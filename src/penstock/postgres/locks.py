"""Keys of advisory locks. Needs no package of PostgreSQL: a broker without one imports it, too."""

from __future__ import annotations

from hashlib import blake2b


def lock_key(schema: str, part: str) -> int:
    """The advisory lock of a part."""
    digest = blake2b(f"penstock {schema} {part}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
