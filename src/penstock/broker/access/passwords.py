"""Hashing passwords with argon2id, off the event loop, a few at a time.

A hash costs some 20 ms and 19 MiB on purpose. So that a fleet that reconnects does not wait for it
again, a password that was right is remembered as a keyed digest, under a key that lives and dies
with the process; a wrong one is never remembered.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from penstock.model.errors import RefusedError
from penstock.model.limits import PASSWORD_BYTES_MAX

THREADS_MAX: Final = 2  # at once: 38 MiB, and never every core of a server
MEMORY_KIB: Final = 19_456  # with the two below what OWASP asks of argon2id as a minimum
PASSES: Final = 2
LANES: Final = 1


class Passwords:
    """Threads that hash, and the digests of what was right."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher(PASSES, MEMORY_KIB, LANES)
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="penstock-login")
        self._key = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}  # hash -> digest of the password it was made of

    async def hash(self, password: bytes) -> str:
        """What is stored of a password; RefusedError if it is empty or too long."""
        if not 1 <= len(password) <= PASSWORD_BYTES_MAX:
            raise RefusedError(
                f"a password of {len(password)} bytes is not possible: use 1 to "
                f"{PASSWORD_BYTES_MAX} bytes"
            )
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._hasher.hash, password)

    async def verify(self, stored: str, password: bytes) -> bool:
        """Whether `stored` was made of this password; a right one is remembered."""
        loop = asyncio.get_running_loop()
        is_right = await loop.run_in_executor(self._threads, self._verify, stored, password)
        if is_right:
            self._right[stored] = self._digest(password)
        return is_right

    def recall(self, stored: str, password: bytes) -> bool:
        """Whether this password was found right before; microseconds."""
        digest = self._right.get(stored)
        return digest is not None and hmac.compare_digest(digest, self._digest(password))

    def forget(self, stored: str) -> None:
        """This hash is no longer anybody's."""
        self._right.pop(stored, None)

    def close(self) -> None:
        """Let running hashes end by themselves; drop those that wait."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _verify(self, stored: str, password: bytes) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
            return False

    def _digest(self, password: bytes) -> bytes:
        return hmac.digest(self._key, password, "sha256")
