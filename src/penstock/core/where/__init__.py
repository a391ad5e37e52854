"""Filter expressions: which records a reader wants, in a small SQL with one meaning everywhere.

`compile_where(text)` gives a `Where` or raises InvalidExpression naming the place and the way out;
`Where.passes(record)` is true only when the expression is TRUE. The tree in `Where.tree` is what
other evaluators (Spark) translate; this table is what they must agree with, and
tests/data/where_cases.json holds them to it.

Values
    name, topic, publisher   text; topic is the declared spelling, publisher '' when unknown
    offset                   integer
    timestamp                integer, µs since 1970 UTC; a string *literal* compared with it (= <> <
                             <= > >= IN BETWEEN) must be an RFC 3339 time
    headers['k']             text, the first value under exactly this key, else NULL
    payload                  the whole payload as text, NULL if it is not UTF-8
    payload.a.b, payload['a b'], payload.list[0], payload[0]
                             the value in the JSON payload: text, integer, double, boolean, or NULL
                             when it is null, missing, on another type than the step needs, or when
                             the payload is not valid JSON (see `document`); an object or an array
                             is not NULL, and every comparison with it is
    numbers                  without fraction and exponent, and within 64 bits: integer; others:
                             double; in JSON a number too large for a double is an infinity
    column names and keywords in any letter case; JSON and header keys exactly as written

Comparisons: = <> < <= > >=, and IN, BETWEEN by them
    integer, integer         exact
    double, double           IEEE 754
    integer, double          the integer rounded to double first, as Spark does: 9007199254740993 =
                             9007199254740992.0 is TRUE
    text, text               by code point, which is the order of the UTF-8 bytes
    boolean, boolean         = and <>; NULL for the four others
    anything else            NULL: nothing is converted, so '5' = 5 is NULL and so is TRUE = 1
    x IN (a, b)              x = a OR x = b
    x BETWEEN a AND b        x >= a AND x <= b
    x LIKE 'pattern'         text only, else NULL; % any run, _ one character, \\ only before % _ \\
                             to take it literally; case-sensitive
    x IS NULL                TRUE or FALSE

Logic
    NOT, AND, OR             SQL's three-valued: NOT NULL is NULL, FALSE AND NULL is FALSE,
                             TRUE OR NULL is TRUE
    payload.ok               a JSON field alone is a condition: NULL unless it is a boolean
    x NOT IN, NOT BETWEEN, NOT LIKE, IS NOT NULL   NOT of the plain form
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from penstock.core.naming.names import quoted
from penstock.core.where.evaluate import Check, Row, check_of
from penstock.core.where.parser import parse
from penstock.core.where.tree import Condition
from penstock.model.errors import InvalidExpression
from penstock.model.record import Record

__all__ = ["COMPILED_MAX", "Where", "compile_where"]

COMPILED_MAX: Final = 256  # expressions kept; a few KiB each, far more than doors use at once


@dataclass(frozen=True, slots=True)
class Where:
    """A compiled expression. Immutable, and safe to share between readers and threads."""

    text: str
    tree: Condition
    _check: Check = field(repr=False, compare=False)

    def evaluate(self, record: Record) -> bool | None:
        """TRUE, FALSE or NULL (None) for this record."""
        return self._check(Row(record))

    def passes(self, record: Record) -> bool:
        """Whether a reader with this filter gets the record: only on TRUE."""
        return self._check(Row(record)) is True


def compile_where(text: str) -> Where:
    """The expression, ready to evaluate; raises InvalidExpression. Repeats are remembered."""
    if not isinstance(text, str):
        raise InvalidExpression(f"where expression {quoted(text)} is not text: pass a str")
    return _compile(text)


@lru_cache(maxsize=COMPILED_MAX)
def _compile(text: str) -> Where:
    condition = parse(text)
    return Where(text, condition, check_of(condition))
