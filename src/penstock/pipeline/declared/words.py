"""The words of an SQL text: enough of its grammar to find the tables it reads. Pure.

Spark parses and checks; this only looks, so that the order of steps, cycles and steps that nobody
reads are known before any Spark is started. An identifier that stands where a table may stand
counts as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

_TOKEN: Final = re.compile(
    r"""
    (?P<skip> \s+ | --[^\n]* | /\*.*?(?:\*/|\Z) )
  | (?P<text> [rR]?'(?:[^'\\]|\\.|'')*' | [rR]?"(?:[^"\\]|\\.|"")*" )
  | `(?P<quoted>(?:[^`]|``)*)`
  | (?P<word> [^\W\d]\w* )
  | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL,
)
# After these the list of tables that FROM began is over, at the same depth of brackets.
_CLAUSES: Final = frozenset(
    (
        *("where", "group", "having", "order", "sort", "cluster", "distribute", "limit", "offset"),
        *("window", "qualify", "union", "intersect", "except", "minus", "select"),
    )
)
_NO_NAMES: Final = frozenset(("select", "values", "with", "lateral", "from", "table"))
_BEGINNINGS: Final = frozenset(("select", "with", "from", "values", "table", "("))
# EXTRACT(hour FROM t), TRIM(BOTH 'x' FROM t), SUBSTRING(t FROM 2), OVERLAY(… FROM 3): no tables.
_CALLS_WITH_FROM: Final = frozenset(("extract", "trim", "substring", "substr", "overlay"))


@dataclass(frozen=True, slots=True)
class Word:
    """A word or a sign, in lower case."""

    plain: str  # empty in quotes of any kind
    index: int
    name: str = ""  # what it may be the name of


def words_of(sql: str) -> Iterator[Word]:
    """All words and signs, without comments."""
    for match in _TOKEN.finditer(sql):
        if match["quoted"] is not None:
            yield Word("", match.start(), match["quoted"].replace("``", "`").lower())
        elif match["word"] is not None:
            yield Word(match["word"].lower(), match.start(), match["word"].lower())
        elif match["text"] is not None:
            yield Word("", match.start())
        elif match["sign"] is not None:
            yield Word(match["sign"], match.start())


def is_query(sql: str) -> bool:
    """Whether the text reads tables and changes nothing."""
    words = [word.plain for word in words_of(sql)]
    if not words or words[0] not in _BEGINNINGS:
        return False
    return not {("insert", "into"), ("insert", "overwrite")} & set(pairwise(words))


def find_word(sql: str, *wanted: str, start: int = 0) -> int:
    """Where these words stand one after the other, at `start` or later; 0 if they do not."""
    words = [word for word in words_of(sql) if word.index >= start]
    for at in range(len(words) - len(wanted) + 1):
        if tuple(word.plain or word.name for word in words[at : at + len(wanted)]) == wanted:
            return words[at].index
    return 0


def may_use(sql: str, column: str) -> bool:
    """False only if a query surely does not use a column of this name, of any of its tables."""
    words = list(words_of(sql))
    if words[0].plain != "select" and words[0].plain != "with":
        return True  # FROM and TABLE give all columns
    for at, word in enumerate(words):
        if word.name == column or word.plain in ("natural", "table", "|"):
            return True
        counts = [one.plain for one in words[max(at - 2, 0) : at + 2]] == ["count", "(", "*", ")"]
        if word.plain == "*" and not counts:
            return True
    return False


def tables_of(sql: str) -> tuple[str, ...]:
    """The tables that a query reads, in lower case, in the order in which they are named."""
    words = list(words_of(sql))
    found: dict[str, None] = {}
    common: set[str] = set()  # what WITH has named so far
    depths = [_Depth()]
    is_expected = False
    for at, word in enumerate(words):
        before = words[at - 1].plain if at else ""
        if word.plain == "(":
            named = _named_by_with(words[:at]) if before == "as" else ""
            depths.append(_Depth(is_expected and depths[-1].lists_tables, before, named))
        elif word.plain == ")":
            if len(depths) > 1:
                common.add(depths.pop().named)
            is_expected = False
        elif is_expected and word.name and word.plain not in _NO_NAMES:
            following = words[at + 1].plain if at + 1 < len(words) else ""
            if following not in ("(", ".") and word.name not in common:
                found.setdefault(word.name)
            is_expected = False
        elif word.plain == "from" and before not in ("distinct", "."):
            is_expected = depths[-1].call not in _CALLS_WITH_FROM
            depths[-1].lists_tables |= is_expected
        elif word.plain == ",":
            is_expected = depths[-1].lists_tables
        elif word.plain in _CLAUSES or (word.plain == "lateral" and not is_expected):
            is_expected = depths[-1].lists_tables = False
        elif word.plain != "lateral":
            is_expected = word.plain == "join" or (word.plain == "table" and _begins(before))
    return tuple(found)


@dataclass(slots=True)
class _Depth:
    """One depth of brackets."""

    lists_tables: bool = False  # a comma leads to another table
    call: str = ""  # the word before the bracket
    named: str = ""  # what WITH calls the query within


def _begins(before: str) -> bool:
    """Whether TABLE stands where a query begins, as in `TABLE readings`."""
    return before in ("", "(", "union", "all", "except", "intersect", "as")


def _named_by_with(before: list[Word]) -> str:
    """The name in `name AS (` or `name (columns) AS (`, of which all before `(` is given."""
    at = len(before) - 2
    if at >= 0 and before[at].plain == ")":
        while at >= 0 and before[at].plain != "(":
            at -= 1
        at -= 1
    return before[at].name if at >= 0 else ""
