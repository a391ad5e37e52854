"""LIKE patterns: `%` any run of characters, `_` one character, `\\` takes the next literally.

Case-sensitive, over code points, newlines are characters like any other. The escape may stand only
before `%`, `_` and itself, as in Spark, which refuses anything else too.

Invariant: no exponential patterns. A pattern is split at its `%` into pieces of fixed length; the
first and the last are anchored and each piece between is taken at its leftmost place after the one
before, which is always right for pieces of fixed length. So nothing is ever tried twice for another
piece: plain pieces cost linear time, pieces with `_` at most text × piece. Where that is much, a
piece is looked for at thousands of places at once, with a bit for each place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

_ANY_ONE: Final = None  # stands for `_` among letters
STEPS_MAX: Final = 1 << 18  # text × piece of one search, letter by letter: about a millisecond
PLACES: Final = 1 << 16  # looked at together: their bits are 8 KiB

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
            _find_compiled(compiled, letters),
        )


def _find_plain(plain: str) -> Callable[[str, int, int], int]:
    return lambda text, start, end: text.find(plain, start, end)


def _find_compiled(compiled: re.Pattern[str], letters: _Letters) -> Callable[[str, int, int], int]:
    find_many = find_by_bits(letters)
    length = len(letters)

    def find(text: str, start: int, end: int) -> int:
        if (end - start) * length > STEPS_MAX:
            return find_many(text, start, end)
        match = compiled.search(text, start, end)
        return -1 if match is None else match.start()

    return find


def find_by_bits(letters: _Letters, places_max: int = PLACES) -> Callable[[str, int, int], int]:
    """The leftmost place of a piece in [start, end) or -1, many places in each step."""
    length = len(letters)
    wanted = [
        (_Letter(letter), [at for at, one in enumerate(letters) if one == letter])
        for letter in dict.fromkeys(letters)
        if letter is not None
    ]

    def find(text: str, start: int, end: int) -> int:
        while start + length <= end:
            count = min(places_max, end - length + 1 - start)  # places that are looked at
            window = text[start : start + count + length - 1]
            size = len(window)
            columns = _columns(window)
            # Bit size - 1 - at stands for the place `at`: the leftmost place is the highest bit.
            left = ((1 << count) - 1) << (size - count)
            for letter, places in wanted:
                bits = letter.bits(columns)
                for place in places:
                    left &= bits << place
                    if not left:
                        break
                if not left:
                    break
            if left:
                return start + size - left.bit_length()
            start += count
        return -1

    return find


def _columns(window: str) -> list[bytes]:
    """The characters as columns of bytes: one for ASCII, else the three of a code point."""
    if window.isascii():
        return [window.encode()]
    wide = window.encode("utf-32-le", "surrogatepass")
    return [wide[0::4], wide[1::4], wide[2::4]]


class _Letter:
    """Finds one character in columns of bytes."""

    __slots__ = ("_is_ascii", "_tables")

    def __init__(self, letter: str) -> None:
        code = ord(letter)
        parts = (code & 255, code >> 8 & 255, code >> 16)
        # Each turns a column into digits: 1 where the byte is the letter's, else 0.
        self._tables = [bytes(48 + (byte == part) for byte in range(256)) for part in parts]
        self._is_ascii = letter.isascii()

    def bits(self, columns: list[bytes]) -> int:
        """A bit for each character, set where it is the letter; the highest for the first."""
        if len(columns) == 1 and not self._is_ascii:
            return 0
        found = int(columns[0].translate(self._tables[0]), 2)
        for column, table in zip(columns[1:], self._tables[1:], strict=False):
            found &= int(column.translate(table), 2)
        return found


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
