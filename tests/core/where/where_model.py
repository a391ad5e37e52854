"""A printer and a slow evaluator of filter expressions, to hold the real ones against.

The evaluator follows the words of `penstock.core.where` one by one and shares no code with the
package but the node types: it reads JSON with the standard library, compares texts by their UTF-32
bytes, builds AND and BETWEEN from OR and NOT, and matches LIKE letter by letter.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from penstock.core.where import tree
from penstock.model.record import Record

# The printer -------------------------------------------------------------------------------


def printed(node: tree.Condition, is_terse: bool) -> str:
    """As text: terse with the fewest parentheses, else with one around everything that can."""

    def inside(inner: tree.Condition, *joins: type) -> str:
        text = printed(inner, is_terse)
        needed = isinstance(inner, joins)
        return f"({text})" if needed or not is_terse else text

    match node:
        case tree.Boolean():
            return "TRUE" if node.value else "false"
        case tree.Null():
            return "null"
        case tree.Truth():
            return operand_text(node.operand, is_terse)
        case tree.Compare():
            sides = [operand_text(side, is_terse) for side in (node.left, node.right)]
            return f"{sides[0]} {node.operator} {sides[1]}"
        case tree.In():
            items = ",".join(operand_text(item, is_terse) for item in node.items)
            return f"{operand_text(node.operand, is_terse)} IN ({items})"
        case tree.Between():
            parts = [operand_text(x, is_terse) for x in (node.operand, node.low, node.high)]
            return f"{parts[0]} between {parts[1]} AND {parts[2]}"
        case tree.Like():
            return f"{operand_text(node.operand, is_terse)} LIKE {quoted(node.pattern)}"
        case tree.IsNull():
            return f"{operand_text(node.operand, is_terse)} Is NULL"
        case tree.Not(tree.In() | tree.Like() | tree.Between() as inner) if is_terse:
            words = r"\b(IN \(|LIKE |between )"
            subject = operand_text(inner.operand, is_terse)
            rest = printed(inner, is_terse).removeprefix(subject)
            return subject + re.sub(words, r"NOT \1", rest, count=1)
        case tree.Not(tree.IsNull() as inner) if is_terse:
            return f"{operand_text(inner.operand, is_terse)} is not null"
        case tree.Not():
            return f"NOT {inside(node.condition, tree.And, tree.Or)}"
        case tree.And():
            return " AND ".join(inside(term, tree.And, tree.Or) for term in node.conditions)
        case tree.Or():
            return "\nor ".join(inside(term, tree.Or) for term in node.conditions)


def operand_text(node: tree.Operand, is_terse: bool) -> str:
    match node:
        case tree.Column():
            text: str = node.name if is_terse else node.name.upper()
        case tree.Header():
            text = f"headers[{quoted(node.key)}]"
        case tree.Path():
            text = "payload" + "".join(step_text(step) for step in node.steps)
        case tree.Null():
            text = "NULL"
        case tree.Boolean():
            text = str(node.value)
        case tree.Integer() | tree.Double():
            text = repr(node.value)
        case tree.Text():
            text = quoted(node.value)
        case tree.Time():
            text = quoted(node.text)
    return text if is_terse else f"({text})"


def step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if re.fullmatch("[A-Za-z]+", step) else f"[{quoted(step)}]"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# The slow evaluator ------------------------------------------------------------------------


def slow_condition(node: tree.Condition, record: Record) -> bool | None:
    match node:
        case tree.Null():
            return None
        case tree.Boolean():
            return node.value
        case tree.Truth():
            value = slow_value(node.operand, record)
            return value if value is True or value is False else None
        case tree.Compare():
            return slow_compare(node.operator, node.left, node.right, record)
        case tree.In():
            return slow_or([slow_compare("=", node.operand, x, record) for x in node.items])
        case tree.Between():
            above = slow_compare(">=", node.operand, node.low, record)
            below = slow_compare("<=", node.operand, node.high, record)
            return slow_not(slow_or([slow_not(above), slow_not(below)]))
        case tree.Like():
            value = slow_value(node.operand, record)
            return slow_like(node.pattern, value) if isinstance(value, str) else None
        case tree.IsNull():
            return slow_value(node.operand, record) is None
        case tree.Not():
            return slow_not(slow_condition(node.condition, record))
        case tree.Or():
            return slow_or([slow_condition(term, record) for term in node.conditions])
        case tree.And():  # De Morgan
            terms = [slow_not(slow_condition(term, record)) for term in node.conditions]
            return slow_not(slow_or(terms))


def slow_not(answer: bool | None) -> bool | None:
    return {True: False, False: True, None: None}[answer]


def slow_or(answers: list[bool | None]) -> bool | None:
    return True if True in answers else None if None in answers else False


def slow_compare(
    symbol: str, left: tree.Operand, right: tree.Operand, record: Record
) -> bool | None:
    a, b = slow_value(left, record), slow_value(right, record)
    kinds = {kind_of(a), kind_of(b)}
    if kinds == {"integer", "double"}:
        a, b = float(cast(float, a)), float(cast(float, b))
    elif len(kinds) == 2 or kinds & {"null", "other"}:
        return None
    if kinds == {"text"}:
        a, b = cast(str, a).encode("utf-32-be"), cast(str, b).encode("utf-32-be")
    if kinds == {"boolean"} and symbol not in ("=", "<>"):
        return None
    x, y = cast(float, a), cast(float, b)
    return {
        "=": x == y,
        "<>": x != y,
        "<": x < y,
        "<=": x <= y,
        ">": x > y,
        ">=": x >= y,
    }[symbol]


def kind_of(value: object) -> str:
    kinds = {bool: "boolean", int: "integer", float: "double", str: "text", type(None): "null"}
    return kinds.get(type(value), "other")


def slow_value(node: tree.Operand, record: Record) -> object:
    match node:
        case tree.Null():
            return None
        case tree.Time():
            return node.us
        case tree.Boolean() | tree.Integer() | tree.Double() | tree.Text():
            return node.value
        case tree.Header():
            return next((value for key, value in record.headers if key == node.key), None)
        case tree.Column("payload"):
            return slow_text(record.payload)
        case tree.Column():
            return cast(object, getattr(record, node.name))
        case tree.Path():
            value = slow_json(record.payload)
            for step in node.steps:
                if isinstance(step, str):
                    value = value.get(step) if isinstance(value, dict) else None
                else:
                    value = dict(enumerate(value)).get(step) if isinstance(value, list) else None
            return value


def slow_text(payload: bytes) -> str | None:
    try:
        return payload.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return None


def slow_json(payload: bytes) -> Any:
    """The standard library's parser, which is laxer than the language, made strict."""

    def refuse(text: str) -> None:
        raise ValueError(text)

    def integer(text: str) -> int | float:
        return int(text) if -(2**63) <= int(text) < 2**63 else float(text)

    text = slow_text(payload)
    if text is None:
        return None
    try:
        document = json.loads(text, parse_constant=refuse, parse_int=integer)
        json.dumps(document, ensure_ascii=False).encode()  # fails for a lone surrogate
    except ValueError:
        return None
    return document


def slow_like(pattern: str, text: str) -> bool:
    """Reachable positions of the text, one pattern character after the other."""
    reached = {0}
    letters = iter(pattern)
    for letter in letters:
        if letter == "%":
            reached = {end for start in reached for end in range(start, len(text) + 1)}
        elif letter == "_":
            reached = {at + 1 for at in reached if at < len(text)}
        else:
            wanted = next(letters) if letter == "\\" else letter
            reached = {at + 1 for at in reached if text[at : at + 1] == wanted}
    return len(text) in reached
