"""Tokens to a tree: the whole grammar, and a refusal with its place for everything else.

    condition   := conjunction (OR conjunction)*
    conjunction := negation (AND negation)*
    negation    := NOT negation | predicate
    predicate   := value [tail]                  -- without tail: TRUE, FALSE, NULL or a JSON field
    tail        := (= | <> | < | <= | > | >=) value | IS [NOT] NULL
                 | [NOT] (IN "(" literal ("," literal)* ")" | BETWEEN value AND value | LIKE string)
    value       := column | headers["key"] | payload step+ | literal | "(" value ")"
    step        := "." word | "[" string "]" | "[" integer "]"
    literal     := [-] number | string | TRUE | FALSE | NULL

Parentheses also group conditions. Invariant: parentheses and NOTs nest at most
EXPRESSION_DEPTH_MAX deep, so neither this parser nor code that walks the tree can exhaust the
stack.
"""

from __future__ import annotations

import math
from typing import Final, TypeAlias, cast

from penstock.core.where import tree
from penstock.core.where.lexer import Kind, Token, refusal, tokens_of
from penstock.core.where.like import BadEscape, compile_like
from penstock.core.where.times import time_us
from penstock.core.where.tree import Condition, Constant, Operand, Operator
from penstock.model.errors import InvalidExpression
from penstock.model.limits import EXPRESSION_DEPTH_MAX

INDEX_MAX: Final = 2**31 - 1  # an array index in Spark's JSON paths

_Node: TypeAlias = Operand | Condition

_COLUMNS: Final = ("name", "timestamp", "offset", "topic", "publisher", "payload")
_OPERATORS: Final = ("=", "<>", "<", "<=", ">", ">=")
_TIMESTAMP: Final = tree.Column("timestamp")
_CONDITIONS: Final = (
    tree.Boolean, tree.Null, tree.Truth, tree.Compare, tree.In, tree.Between, tree.Like,
    tree.IsNull, tree.Not, tree.And, tree.Or,
)  # fmt: skip
_CONSTANTS: Final = (tree.Null, tree.Boolean, tree.Integer, tree.Double, tree.Text, tree.Time)
_OPERANDS: Final = (tree.Column, tree.Header, tree.Path, *_CONSTANTS)


def parse(text: str) -> Condition:
    """The tree of an expression; raises InvalidExpression with the place and the way out."""
    return _Parser(tokens_of(text)).parse()


class _Parser:
    """One pass over the tokens, one token of lookahead."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._index = 0
        self._depth = 0

    def parse(self) -> Condition:
        start = self._next
        if start.kind is Kind.END:
            raise _refuse(start, "it is empty: omit `where` to get every record")
        node = self._condition()
        if self._next.kind is not Kind.END:
            raise _unexpected(self._next)
        return _as_condition(node, start)

    # Conditions ----------------------------------------------------------------------------

    def _condition(self) -> _Node:
        start = self._next
        node = self._conjunction()
        if not self._next.is_keyword("OR"):
            return node
        terms = [_as_condition(node, start)]
        while self._accept_keyword("OR"):
            start = self._next
            terms.append(_as_condition(self._conjunction(), start))
        return tree.Or(tuple(terms))

    def _conjunction(self) -> _Node:
        start = self._next
        node = self._negation()
        if not self._next.is_keyword("AND"):
            return node
        terms = [_as_condition(node, start)]
        while self._accept_keyword("AND"):
            start = self._next
            terms.append(_as_condition(self._negation(), start))
        return tree.And(tuple(terms))

    def _negation(self) -> _Node:
        token = self._next
        if not self._accept_keyword("NOT"):
            return self._predicate()
        self._descend(token)
        start = self._next
        condition = _as_condition(self._negation(), start)
        self._depth -= 1
        return tree.Not(condition)

    def _predicate(self) -> _Node:
        start = self._next
        node = self._value_or_group()
        token = self._next
        if token.kind is Kind.SYMBOL and token.text in _OPERATORS:
            left = _as_operand(node, start)
            self._index += 1
            right_start = self._next
            right = self._value()
            left, right = _beside_time(left, right, start), _beside_time(right, left, right_start)
            return tree.Compare(cast(Operator, token.text), left, right)
        if self._accept_keyword("IS"):
            return self._null_test(_as_operand(node, start))
        if self._accept_keyword("NOT"):
            return tree.Not(self._word_predicate(_as_operand(node, start), start))
        if token.is_keyword("IN") or token.is_keyword("BETWEEN") or token.is_keyword("LIKE"):
            return self._word_predicate(_as_operand(node, start), start)
        return node

    def _null_test(self, operand: Operand) -> Condition:
        is_negated = self._accept_keyword("NOT")
        if not self._accept_keyword("NULL"):
            raise _refuse(
                self._next, "IS takes NULL or NOT NULL: write other tests with =, as in = TRUE"
            )
        return tree.Not(tree.IsNull(operand)) if is_negated else tree.IsNull(operand)

    def _word_predicate(self, operand: Operand, start: Token) -> Condition:
        if self._accept_keyword("IN"):
            return tree.In(operand, self._items(operand))
        if self._accept_keyword("BETWEEN"):
            return self._between(operand, start)
        if self._accept_keyword("LIKE"):
            if operand == _TIMESTAMP:
                raise _refuse(start, "a time is not text: use BETWEEN two times instead of LIKE")
            return tree.Like(operand, self._pattern())
        raise _refuse(self._next, "NOT after a value is followed by IN, BETWEEN or LIKE")

    def _items(self, operand: Operand) -> tuple[Constant, ...]:
        self._expect_symbol("(", "IN takes literals in parentheses, as in IN (1, 2)")
        items: list[Constant] = []
        while True:
            start = self._next
            if start.is_symbol(")"):
                raise _refuse(start, "IN needs a literal here, as in IN (1, 2)")
            item = _beside_time(self._value(), operand, start)
            if not isinstance(item, _CONSTANTS):
                raise _refuse(start, "IN takes literals only: write = and OR for other values")
            items.append(item)
            if not self._accept_symbol(","):
                break
        self._expect_symbol(")", "after a value in IN, write , or )")
        return tuple(items)

    def _between(self, operand: Operand, start: Token) -> Condition:
        low_start = self._next
        low = self._value()
        if not self._accept_keyword("AND"):
            raise _refuse(self._next, "BETWEEN takes two bounds: BETWEEN low AND high")
        high_start = self._next
        high = self._value()
        for bound in (low, high):
            operand = _beside_time(operand, bound, start)
        low, high = _beside_time(low, operand, low_start), _beside_time(high, operand, high_start)
        return tree.Between(operand, low, high)

    def _pattern(self) -> str:
        token = self._next
        if token.kind is not Kind.STRING:
            raise _refuse(token, "LIKE takes a pattern in quotes, as in LIKE 'sensors/%'")
        self._index += 1
        pattern = token.string()
        try:
            compile_like(pattern)
        except BadEscape as error:
            raise refusal(
                token.position_within(error.index),
                pattern[error.index : error.index + 2],
                r"in a LIKE pattern \ is allowed only before %, _ or \: write \\ for a backslash",
            ) from None
        return pattern

    # Values --------------------------------------------------------------------------------

    def _value(self) -> Operand:
        start = self._next
        return _as_operand(self._value_or_group(), start)

    def _value_or_group(self) -> _Node:
        token = self._next
        if token.is_symbol("("):
            return self._group(token)
        if token.kind is Kind.WORD:
            return self._reference(token)
        return self._literal(token)

    def _group(self, opening: Token) -> _Node:
        self._index += 1
        self._descend(opening)
        node = self._condition()
        if self._next.kind is Kind.END:
            raise _refuse(self._next, f"the ( at column {opening.position} is not closed: add )")
        if not self._accept_symbol(")"):
            raise _unexpected(self._next)
        self._depth -= 1
        return node

    def _literal(self, token: Token) -> Constant:
        self._index += 1
        if token.kind is Kind.NUMBER:
            return _number(token, "")
        if token.kind is Kind.STRING:
            return tree.Text(token.string())
        if token.is_keyword("NULL"):
            return tree.Null()
        if token.is_keyword("TRUE") or token.is_keyword("FALSE"):
            return tree.Boolean(token.is_keyword("TRUE"))
        if token.is_symbol("-"):
            if self._next.kind is not Kind.NUMBER:
                raise _refuse(token, "a minus belongs to a number: there is no arithmetic")
            self._index += 1
            return _number(self._tokens[self._index - 1], "-")
        raise _no_value(token)

    def _reference(self, token: Token) -> Operand:
        self._index += 1
        word = token.text.lower()
        following = self._next
        if following.is_symbol("("):
            raise _refuse(token, "functions are not part of the language: compare the value itself")
        if word == "headers":
            return self._header()
        if word not in _COLUMNS:
            raise _refuse(
                token,
                f"no such column: there are {', '.join(_COLUMNS)} and headers['key']; "
                f"a JSON field is written payload.{token.text}, a string '{token.text}'",
            )
        if not (following.is_symbol(".") or following.is_symbol("[")):
            return tree.Column(cast(tree.ColumnName, word))
        if word != "payload":
            raise _refuse(following, f"{word} has no fields: only payload and headers have")
        return self._path()

    def _header(self) -> Operand:
        form = "a header is written headers['key']"
        self._expect_symbol("[", form)
        key = self._next
        if key.kind is not Kind.STRING:
            raise _refuse(key, form)
        self._index += 1
        self._expect_symbol("]", form)
        if self._next.is_symbol(".") or self._next.is_symbol("["):
            raise _refuse(self._next, "a header is text and has no fields")
        return tree.Header(key.string())

    def _path(self) -> Operand:
        steps: list[str | int] = []
        while True:
            if self._accept_symbol("."):
                key = self._next
                if key.kind not in (Kind.WORD, Kind.KEYWORD):
                    raise _refuse(
                        key,
                        "a plain key is expected after .: write payload['any key'] for others, "
                        "payload[0] for an element of an array",
                    )
                self._index += 1
                steps.append(key.text)
            elif self._accept_symbol("["):
                steps.append(self._subscript())
                self._expect_symbol("]", "a subscript ends with ]")
            else:
                return tree.Path(tuple(steps))

    def _subscript(self) -> str | int:
        token = self._next
        self._index += 1
        if token.kind is Kind.STRING:
            return token.string()
        if token.kind is Kind.NUMBER and token.text.isdigit():
            index = int(token.text)
            if index > INDEX_MAX:
                raise _refuse(token, f"an array index is at most {INDEX_MAX}")
            return index
        raise _refuse(
            token, "a key in single quotes, or an index counted from 0, is expected in [ ]"
        )

    # Tokens --------------------------------------------------------------------------------

    @property
    def _next(self) -> Token:
        return self._tokens[self._index]

    def _accept_keyword(self, keyword: str) -> bool:
        if not self._next.is_keyword(keyword):
            return False
        self._index += 1
        return True

    def _accept_symbol(self, symbol: str) -> bool:
        if not self._next.is_symbol(symbol):
            return False
        self._index += 1
        return True

    def _expect_symbol(self, symbol: str, rule: str) -> None:
        if not self._accept_symbol(symbol):
            raise _refuse(self._next, rule)

    def _descend(self, token: Token) -> None:
        self._depth += 1
        if self._depth > EXPRESSION_DEPTH_MAX:
            raise _refuse(
                token,
                f"parentheses and NOTs nest deeper than {EXPRESSION_DEPTH_MAX} levels: "
                "a row of ANDs or ORs needs no parentheses",
            )


# What a node may be used for ---------------------------------------------------------------


def _as_operand(node: _Node, start: Token) -> Operand:
    if isinstance(node, _OPERANDS):
        return node
    raise _refuse(start, "a condition is not a value to compare: join conditions with AND and OR")


def _as_condition(node: _Node, start: Token) -> Condition:
    if isinstance(node, tree.Path):
        return tree.Truth(node)
    if isinstance(node, _CONDITIONS):
        return node
    raise _refuse(
        start, "this is a value, not a condition: compare it, as in name = 'a' or offset > 10"
    )


def _beside_time(node: Operand, other: Operand, start: Token) -> Operand:
    """A string literal compared with `timestamp` is a time; any other operand is what it was."""
    if other != _TIMESTAMP or not isinstance(node, tree.Text):
        return node
    us = time_us(node.value)
    if us is None:
        raise _refuse(
            start,
            "timestamp is compared with a time (RFC 3339, with seconds and zone, at most µs), "
            "as in '2026-01-02T03:04:05.678Z' or '2026-01-02T03:04:05+02:00'",
        )
    return tree.Time(node.value, us)


def _number(token: Token, sign: str) -> Constant:
    text = sign + token.text
    if token.text.isdigit() and tree.INTEGER_MIN <= int(text) <= tree.INTEGER_MAX:
        return tree.Integer(int(text))
    value = float(text)
    if math.isinf(value):
        raise _refuse(token, "the number is outside the range of a double: at most about 1.8e308")
    return tree.Double(value)


# Refusals ----------------------------------------------------------------------------------


def _refuse(token: Token, rule: str) -> InvalidExpression:
    return refusal(token.position, token.text, rule)


def _no_value(token: Token) -> InvalidExpression:
    if token.is_symbol("."):
        return _refuse(token, "a value cannot begin with a point: write 0.5, or payload.field")
    if token.kind is Kind.END:
        return _refuse(token, "it ends where a value is missing: a column, a JSON field, a literal")
    return _refuse(token, "a value is expected here: a column, a JSON field or a literal")


def _unexpected(token: Token) -> InvalidExpression:
    """For a token after a complete value or condition."""
    if token.text in _OPERATORS or token.text.upper() in ("IS", "IN", "BETWEEN", "LIKE", "NOT"):
        return _refuse(token, "comparisons do not chain: join them with AND or OR")
    if token.is_symbol(")"):
        return _refuse(token, "there is no matching (: remove it")
    if token.is_symbol("-"):
        return _refuse(token, "arithmetic is not part of the language: compare with the number")
    return _refuse(token, "an operator is expected here (= <> < <= > >= IN BETWEEN LIKE IS AND OR)")
