"""Positions in a TOML text: the line of every key, and of every character of a string.

tomllib checks and reads the file; this module only finds positions. Use it only for text that
tomllib has accepted: it does not notice errors.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

Path = tuple[str | int, ...]  # keys, and numbers within arrays

_ESCAPES: Final = {
    **{"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"},
    **{'"': '"', "\\": "\\"},
}
_CODE_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_BLANK: Final = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
_SPACE: Final = re.compile(r"[ \t]*")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR: Final = re.compile(r"[^,\]}#\n]*")
_CONTINUED: Final = re.compile(r"[ \t]*\n\s*")


@dataclass(frozen=True, slots=True)
class Place:
    """A character of the file; both numbers count from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Places:
    """The positions of the keys and strings of one file."""

    lines: list[str]
    keys: dict[Path, Place] = field(default_factory=dict)
    texts: dict[Path, list[int]] = field(default_factory=dict)  # of each character, its index
    starts: list[int] = field(default_factory=list)  # of lines, as indexes

    def of(self, *path: str | int) -> Place:
        """The position of a key; for a missing key, of the nearest table around it."""
        while path and path not in self.keys:
            path = path[:-1]
        return self.keys.get(path, Place(1, 1))

    def within(self, path: Path, index: int) -> Place:
        """The position of a character of a string."""
        found = self.texts.get(path)
        if not found:
            return self.of(*path)
        return self.at(found[min(max(index, 0), len(found) - 1)])

    def at(self, index: int) -> Place:
        line = bisect_right(self.starts, index)
        return Place(line, index - self.starts[line - 1] + 1)


def find_places(text: str) -> Places:
    """The places of everything in a TOML text."""
    text = text.replace("\r\n", "\n")  # as tomllib does
    places = Places(text.split("\n"), starts=[0])
    places.starts += [match.end() for match in re.finditer("\n", text)]
    _Finder(text, places).document()
    return places


class _Finder:
    """One walk through the text; `_at` is the character that comes next."""

    def __init__(self, text: str, places: Places) -> None:
        self._text = text
        self._places = places
        self._at = 0
        self._arrays: dict[Path, int] = {}  # of tables: how many there are so far

    def document(self) -> None:
        table: Path = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _header(self) -> Path:
        """[table] or [[array of tables]]."""
        begin = self._at
        is_array = self._text.startswith("[[", begin)
        self._at += 2 if is_array else 1
        *above, last = self._dotted()
        path = (*self._below(tuple(above)), last)
        self._at = self._text.index("]", self._at) + (2 if is_array else 1)
        if is_array:
            number = self._arrays[path] = self._arrays.get(path, -1) + 1
            path = (*path, number)
        for length in range(1, len(path) + 1):
            self._note(path[:length], begin)
        return path

    def _below(self, keys: Path) -> Path:
        """The path of keys, with the newest table of each array in between."""
        path: Path = ()
        for key in keys:
            path = (*path, key)
            if path in self._arrays:
                path = (*path, self._arrays[path])
        return path

    def _pair(self, table: Path) -> None:
        begin = self._at
        path = table
        for key in self._dotted():
            path = (*path, key)
            self._note(path, begin)
        self._at = self._text.index("=", self._at) + 1
        self._value(path)

    def _dotted(self) -> list[str]:
        keys = []
        while True:
            self._skip(_SPACE)
            if self._text[self._at] in "\"'":
                keys.append("".join(char for char, _ in self._string()))
            else:
                begin = self._at
                self._skip(_BARE)
                keys.append(self._text[begin : self._at])
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return keys
            self._at += 1

    def _value(self, path: Path) -> None:
        self._skip(_SPACE)
        match self._text[self._at]:
            case '"' | "'":
                self._places.texts[path] = [index for _, index in self._string()]
            case "[":
                self._items(path)
            case "{":
                self._inline_table(path)
            case _:
                self._skip(_SCALAR)

    def _items(self, path: Path) -> None:
        self._at += 1
        number = 0
        while self._next_is_not("]"):
            self._note((*path, number), self._at)
            self._value((*path, number))
            number += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while self._next_is_not("}"):
            self._pair(path)

    def _next_is_not(self, end: str) -> bool:
        """Skip to what comes next in brackets; False at their end."""
        self._skip(_BLANK)
        if self._text[self._at] == ",":
            self._at += 1
            self._skip(_BLANK)
        if self._text[self._at] == end:
            self._at += 1
            return False
        return True

    def _string(self) -> Iterator[tuple[str, int]]:
        """The characters of a string of any kind, each with the index where it begins."""
        quote = self._text[self._at]
        is_long = self._text.startswith(quote * 3, self._at)
        end = quote * (3 if is_long else 1)
        self._at += len(end)
        if is_long and self._text[self._at] == "\n":
            self._at += 1
        while not self._is_end(end):
            begin = self._at
            if quote == '"' and self._text[begin] == "\\":
                char = self._escaped()
            else:
                char = self._text[begin]
                self._at += 1
            if char:
                yield char, begin
        self._at += len(end)

    def _is_end(self, end: str) -> bool:
        """Quotes before the last three of a long string belong to it."""
        return self._text.startswith(end, self._at) and not (
            len(end) == 3 and self._text.startswith(end, self._at + 1)
        )

    def _escaped(self) -> str:
        """The character after a backslash; none for one that joins lines."""
        kind = self._text[self._at + 1]
        if kind in _ESCAPES:
            self._at += 2
            return _ESCAPES[kind]
        if kind in _CODE_DIGITS:
            begin = self._at + 2
            self._at = begin + _CODE_DIGITS[kind]
            return chr(int(self._text[begin : self._at], 16))
        self._at += 1
        self._skip(_CONTINUED)
        return ""

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _note(self, path: Path, index: int) -> None:
        self._places.keys.setdefault(path, self._places.at(index))
