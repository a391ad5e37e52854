"""Whether the compiled modules are compiled: what `penstock serve` and bug reports say."""

from __future__ import annotations

from penstock.core.naming import trie


def engine_kind() -> str:
    """`compiled` when the extension modules were built, `interpreted` when Python runs them."""
    return "interpreted" if trie.__file__.endswith(".py") else "compiled"
