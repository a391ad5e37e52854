"""Tables that the settings file may have several of: their shape and their keys."""

from __future__ import annotations

from typing import Any

from penstock.model.errors import InvalidSetting


def tables(rows: Any, name: str, origin: str) -> list[dict[str, Any]]:
    """The rows; InvalidSetting unless they are tables."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InvalidSetting(f"{origin}: {name} is not a list: write [[{name}]]")
    return rows


def check_keys(
    row: dict[str, Any], name: str, needed: set[str], optional: set[str], origin: str
) -> None:
    """InvalidSetting if a key is missing or unknown."""
    # What is under an unknown key may be a password in the wrong place.
    shown = {key: value if key in needed | optional else "…" for key, value in row.items()}
    missing = sorted(needed - row.keys())
    unknown = sorted(row.keys() - needed - optional)
    if missing:
        raise InvalidSetting(f"{origin}: [[{name}]] {shown!r} has no key {missing[0]!r}: add it")
    if unknown:
        known = ", ".join(map(repr, sorted(needed | optional)))
        raise InvalidSetting(
            f"{origin}: [[{name}]] {shown!r} has the unknown key {unknown[0]!r}: use {known}"
        )
