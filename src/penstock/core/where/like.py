"""LIKE patterns: `%` any run of characters, `_` one character, `\\` takes the next literally.

Case-sensitive, over code points, newlines are characters like any other. The escape may stand only
before `%`, `_` and itself, as in Spark, which refuses anything else too.

Invariant: no exponential patterns. A pattern is split at its `%` into pieces of fixed length; the
first and the last are anchored and each piece between is taken at its leftmost place after the one
before, which is always right for pieces of fixed length. So nothing is ever tried twice for another
piece: plain pieces cost linear time, pieces with `_` at most text × piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

_ANY_ONE: Final = None  # stands for `_` among letters

_Letters: TypeAlias = list[str | None]


class BadEscape(ValueError):
    """The pattern misuses the escape character at `index`."""

    def __init__(self, index: int) -> None:
        super().__init__(f"escape character at {index} precedes neither %, _ nor \\")
        self.index = index


def compile_like(pattern: str) -> Callable[[str], bool]:
    """A function that says whether the whole text matches; raises BadEscape."""
    pieces = [_Piece.of(letters) for letters in _split(pattern)]
    if len(pieces) == 1:
        only = pieces[0]
        return lambda text: len(text) == only.length and only.is_at(text, 0)
    first, *middle, last = pieces
    return _matcher(first, [piece for piece in middle if piece.length], last)


def _split(pattern: str) -> list[_Letters]:
    pieces: list[_Letters] = [[]]
    index = 0
    while index < len(pattern):
        character = pattern[index]
        if character == "\\":
            if pattern[index + 1 : index + 2] not in ("%", "_", "\\"):
                raise BadEscape(index)
            index += 1
            pieces[-1].append(pattern[index])
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(_ANY_ONE if character == "_" else character)
        index += 1
    return pieces


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of fixed length: `find` gives its leftmost place in [start, end) or -1."""

    length: int
    is_at: Callable[[str, int], bool]
    find: Callable[[str, int, int], int]

    @classmethod
    def of(cls, letters: _Letters) -> _Piece:
        if _ANY_ONE not in letters:
            plain = "".join(letter for letter in letters if letter is not None)
            return cls(len(plain), lambda text, at: text.startswith(plain, at), _find_plain(plain))
        # Single characters and dots only: no quantifier, hence no backtracking.
        source = "".join("." if letter is None else re.escape(letter) for letter in letters)
        compiled = re.compile(source, re.DOTALL)
        return cls(
            len(letters),
            lambda text, at: compiled.match(text, at) is not None,
            _find_compiled(compiled),
        )


def _find_plain(plain: str) -> Callable[[str, int, int], int]:
    return lambda text, start, end: text.find(plain, start, end)


def _find_compiled(compiled: re.Pattern[str]) -> Callable[[str, int, int], int]:
    def find(text: str, start: int, end: int) -> int:
        match = compiled.search(text, start, end)
        return -1 if match is None else match.start()

    return find


def _matcher(first: _Piece, middle: list[_Piece], last: _Piece) -> Callable[[str], bool]:
    shortest = first.length + last.length

    def matches(text: str) -> bool:
        end = len(text) - last.length
        if len(text) < shortest or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        start = first.length
        for piece in middle:
            found = piece.find(text, start, end)
            if found < 0:
                return False
            start = found + piece.length
        return True

    return matches
