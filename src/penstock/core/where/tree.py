"""What a filter expression means, as values: the parser builds it, evaluators walk it.

Invariant: a tree holds only the node types below, so code that walks it (live evaluation, SQL for
Spark) handles every class in `Operand` and `Condition` and is complete. Negated forms have no
node of their own: `x NOT IN (…)`, `x NOT LIKE …` and `x IS NOT NULL` are `Not` over the plain
form, which three-valued logic makes the same thing.

One class per kind of literal, because Python says `1 == True == 1.0` and the language does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Operator: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]
ColumnName: TypeAlias = Literal["name", "timestamp", "offset", "topic", "publisher", "payload"]

INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Column:
    """A field of the record; `payload` here is the whole payload as UTF-8 text."""

    name: ColumnName


@dataclass(frozen=True, slots=True)
class Header:
    """The first value under this key."""

    key: str


@dataclass(frozen=True, slots=True)
class Path:
    """A value inside the JSON payload: str steps are object keys, int steps array indexes."""

    steps: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Null:
    """The literal NULL."""


@dataclass(frozen=True, slots=True)
class Boolean:
    """TRUE or FALSE."""

    value: bool


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer of 64 bits; wider ones are written as `Double` by the parser."""

    value: int


@dataclass(frozen=True, slots=True)
class Double:
    """A finite number with a fraction or an exponent, or an integer wider than 64 bits."""

    value: float


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal, unescaped."""

    value: str


@dataclass(frozen=True, slots=True)
class Time:
    """A string literal that is compared with `timestamp`: RFC 3339, and its µs since 1970."""

    text: str
    us: int


@dataclass(frozen=True, slots=True)
class Truth:
    """A JSON value used as a condition by itself: NULL unless it is a boolean."""

    operand: Path


@dataclass(frozen=True, slots=True)
class Compare:
    """One of the six comparisons."""

    operator: Operator
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class In:
    """Equal to one of the literals; `items` is never empty."""

    operand: Operand
    items: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """`operand >= low AND operand <= high`."""

    operand: Operand
    low: Operand
    high: Operand


@dataclass(frozen=True, slots=True)
class Like:
    """Text against a pattern with `%`, `_` and the escape `\\`, still in its written form."""

    operand: Operand
    pattern: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """TRUE or FALSE, never NULL."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """NULL stays NULL."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class And:
    """FALSE if any is FALSE, else NULL if any is NULL, else TRUE; two conditions or more."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """TRUE if any is TRUE, else NULL if any is NULL, else FALSE; two conditions or more."""

    conditions: tuple[Condition, ...]


Constant: TypeAlias = Null | Boolean | Integer | Double | Text | Time
Operand: TypeAlias = Column | Header | Path | Constant
Condition: TypeAlias = (
    Boolean | Null | Truth | Compare | In | Between | Like | IsNull | Not | And | Or
)
