"""A tree to one Python function: compiled once, called for every record.

Values at run time are exactly None, bool, int of 64 bits, float, str, and (from JSON) dict and
list, which equal nothing. Invariant: a function made here never raises for what a record holds,
reads the JSON of a record at most once, and only when the answer depends on it. AND and OR ask
conditions without JSON first; that changes no answer, because a condition has no effect and
three-valued AND and OR do not depend on order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, assert_never

from penstock.core.where import tree
from penstock.core.where.document import UNREAD, as_value, read_json
from penstock.core.where.like import compile_like
from penstock.core.where.tree import Condition, Constant, Operand, Operator
from penstock.model.record import Record


class Row:
    """A record under evaluation, with its JSON once somebody asked for it."""

    __slots__ = ("document", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.document = UNREAD


Fetch: TypeAlias = Callable[[Row], object]
Check: TypeAlias = Callable[[Row], bool | None]

_Comparison: TypeAlias = Callable[[Any, Any], bool]  # of two values already known to compare

_COMPARISONS: Final[dict[Operator, _Comparison]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED: Final[dict[Operator, Operator]] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}
_CONSTANTS: Final = (tree.Null, tree.Boolean, tree.Integer, tree.Double, tree.Text, tree.Time)


def check_of(node: Condition) -> Check:
    """The function that answers TRUE, FALSE or NULL (None) for a row."""
    match node:
        case tree.Boolean() | tree.Null():
            answer = None if isinstance(node, tree.Null) else node.value
            return lambda row: answer
        case tree.Truth():
            return _truth(_fetch_of(node.operand))
        case tree.Compare():
            return _compare(node.operator, node.left, node.right)
        case tree.In():
            return _in(_fetch_of(node.operand), node.items)
        case tree.Between():
            low = _compare(">=", node.operand, node.low)
            high = _compare("<=", node.operand, node.high)
            return _all([low, high])
        case tree.Like():
            return _like(_fetch_of(node.operand), node.pattern)
        case tree.IsNull():
            fetch = _fetch_of(node.operand)
            return lambda row: fetch(row) is None
        case tree.Not():
            return _not(check_of(node.condition))
        case tree.And():
            return _all([check_of(term) for term in sorted(node.conditions, key=_reads_json)])
        case tree.Or():
            return _any([check_of(term) for term in sorted(node.conditions, key=_reads_json)])
        case _:
            assert_never(node)


# Logic -------------------------------------------------------------------------------------


def _all(checks: Sequence[Check]) -> Check:
    def check(row: Row) -> bool | None:
        answer: bool | None = True
        for term in checks:
            outcome = term(row)
            if outcome is False:
                return False
            if outcome is None:
                answer = None
        return answer

    return check


def _any(checks: Sequence[Check]) -> Check:
    def check(row: Row) -> bool | None:
        answer: bool | None = False
        for term in checks:
            outcome = term(row)
            if outcome is True:
                return True
            if outcome is None:
                answer = None
        return answer

    return check


def _not(inner: Check) -> Check:
    def check(row: Row) -> bool | None:
        outcome = inner(row)
        return None if outcome is None else not outcome

    return check


def _truth(fetch: Fetch) -> Check:
    def check(row: Row) -> bool | None:
        value = fetch(row)
        return value if isinstance(value, bool) else None

    return check


def _reads_json(node: Condition) -> bool:
    match node:
        case tree.Truth():
            return True
        case tree.Compare():
            return isinstance(node.left, tree.Path) or isinstance(node.right, tree.Path)
        case tree.Between():
            return any(isinstance(x, tree.Path) for x in (node.operand, node.low, node.high))
        case tree.In() | tree.Like() | tree.IsNull():
            return isinstance(node.operand, tree.Path)
        case tree.Not():
            return _reads_json(node.condition)
        case tree.And() | tree.Or():
            return any(_reads_json(term) for term in node.conditions)
        case tree.Boolean() | tree.Null():
            return False
        case _:
            assert_never(node)


# Comparisons -------------------------------------------------------------------------------


def _compare(symbol: Operator, left: Operand, right: Operand) -> Check:
    if isinstance(left, _CONSTANTS) and not isinstance(right, _CONSTANTS):
        symbol, left, right = _MIRRORED[symbol], right, left
    fetch = _fetch_of(left)
    match right:
        case tree.Text():
            return _against_text(_COMPARISONS[symbol], fetch, right.value)
        case tree.Integer():
            return _against_integer(_COMPARISONS[symbol], fetch, right.value)
        case tree.Time():
            return _against_integer(_COMPARISONS[symbol], fetch, right.us)
        case tree.Double():
            return _against_double(_COMPARISONS[symbol], fetch, right.value)
        case _:
            return _against_any(symbol, fetch, _fetch_of(right))


def _against_text(compare: _Comparison, fetch: Fetch, text: str) -> Check:
    def check(row: Row) -> bool | None:
        value = fetch(row)
        return compare(value, text) if type(value) is str else None

    return check


def _against_integer(compare: _Comparison, fetch: Fetch, integer: int) -> Check:
    rounded = float(integer)

    def check(row: Row) -> bool | None:
        value = fetch(row)
        if type(value) is int:
            return compare(value, integer)
        return compare(value, rounded) if type(value) is float else None

    return check


def _against_double(compare: _Comparison, fetch: Fetch, double: float) -> Check:
    def check(row: Row) -> bool | None:
        value = fetch(row)
        if type(value) is float:
            return compare(value, double)
        return compare(float(value), double) if type(value) is int else None

    return check


def _against_any(symbol: Operator, fetch_left: Fetch, fetch_right: Fetch) -> Check:
    compare = _COMPARISONS[symbol]
    # Booleans are equal or not; they have no order.
    alike = (int, float, str, bool) if symbol in ("=", "<>") else (int, float, str)

    def check(row: Row) -> bool | None:
        left = fetch_left(row)
        right = fetch_right(row)
        if type(left) is type(right):
            return compare(left, right) if type(left) in alike else None
        if type(left) is int and type(right) is float:
            return compare(float(left), right)
        if type(left) is float and type(right) is int:
            return compare(left, float(right))
        return None

    return check


def _in(fetch: Fetch, items: tuple[Constant, ...]) -> Check:
    """Equal to any item, as if by OR: an item of another type than the value's counts as NULL."""
    values = [_constant(item) for item in items]
    integers = frozenset(value for value in values if type(value) is int)
    doubles = frozenset(value for value in values if type(value) is float)
    rounded = doubles | {float(integer) for integer in integers}
    texts = frozenset(value for value in values if type(value) is str)
    booleans = frozenset(value for value in values if type(value) is bool)
    kinds = {type(value) for value in values}
    number_miss = None if kinds - {int, float} else False
    text_miss = None if kinds - {str} else False
    boolean_miss = None if kinds - {bool} else False

    def check(row: Row) -> bool | None:
        value = fetch(row)
        if type(value) is str:
            return True if value in texts else text_miss
        if type(value) is int:
            return True if value in integers or float(value) in doubles else number_miss
        if type(value) is float:
            return True if value in rounded else number_miss
        if type(value) is bool:
            return True if value in booleans else boolean_miss
        return None

    return check


def _like(fetch: Fetch, pattern: str) -> Check:
    matches = compile_like(pattern)

    def check(row: Row) -> bool | None:
        value = fetch(row)
        return matches(value) if type(value) is str else None

    return check


# Values ------------------------------------------------------------------------------------


def _fetch_of(operand: Operand) -> Fetch:
    match operand:
        case tree.Column():
            return _column(operand.name)
        case tree.Header():
            return _header(operand.key)
        case tree.Path():
            return _path(operand.steps)
        case _:
            constant = _constant(operand)
            return lambda row: constant


def _constant(literal: Constant) -> object:
    match literal:
        case tree.Null():
            return None
        case tree.Time():
            return literal.us
        case _:
            return literal.value


def _column(name: tree.ColumnName) -> Fetch:
    match name:
        case "name":
            return lambda row: row.record.name
        case "timestamp":
            return lambda row: row.record.timestamp
        case "offset":
            return lambda row: row.record.offset
        case "topic":
            return lambda row: row.record.topic
        case "publisher":
            return lambda row: row.record.publisher
        case "payload":
            return _payload_text
        case _:
            assert_never(name)


def _payload_text(row: Row) -> str | None:
    try:
        return row.record.payload.decode()
    except UnicodeDecodeError:
        return None


def _header(key: str) -> Fetch:
    def fetch(row: Row) -> str | None:
        for header, value in row.record.headers:
            if header == key:
                return value
        return None

    return fetch


def _path(steps: tuple[str | int, ...]) -> Fetch:
    first, *further = steps
    if isinstance(first, str) and not further:
        return _field(first)

    def fetch(row: Row) -> object:
        value = row.document
        if value is UNREAD:
            value = row.document = read_json(row.record.payload)
        for step in steps:
            if isinstance(step, str):
                if type(value) is not dict:
                    return None
                value = value.get(step)
            elif type(value) is list and step < len(value):
                value = value[step]
            else:
                return None
        return as_value(value) if type(value) is int else value

    return fetch


def _field(key: str) -> Fetch:
    """The commonest path, a field of the outermost object, without the loop."""

    def fetch(row: Row) -> object:
        document = row.document
        if document is UNREAD:
            document = row.document = read_json(row.record.payload)
        value = document.get(key) if type(document) is dict else None
        return as_value(value) if type(value) is int else value

    return fetch
