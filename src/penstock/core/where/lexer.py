"""Text to tokens; every token knows where it stands, so every refusal can say so.

Invariant: tokens cover the text without overlap, only whitespace lies between them, and the last
one is END, one past the text. Positions are columns counted from 1 in characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from penstock.model.errors import InvalidExpression
from penstock.model.limits import EXPRESSION_CHARS_MAX

_SHOWN_CHARS_MAX: Final = 40  # of the offending text in a message; the position says the rest


class Kind(Enum):
    """What a token is, before anybody asks what it means."""

    KEYWORD = auto()
    WORD = auto()
    NUMBER = auto()
    STRING = auto()
    SYMBOL = auto()
    END = auto()


KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL", "TRUE", "FALSE"}
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the expression. `text` is as written; `is_symbol("(")` and the like compare it."""

    kind: Kind
    text: str
    position: int  # 1-based column of its first character

    def is_keyword(self, keyword: str) -> bool:
        """Keywords are the same in any letter case."""
        return self.kind is Kind.KEYWORD and self.text.upper() == keyword

    def is_symbol(self, symbol: str) -> bool:
        return self.kind is Kind.SYMBOL and self.text == symbol

    def string(self) -> str:
        """The value of a STRING: quotes off, each '' one quote."""
        assert self.kind is Kind.STRING, self
        return self.text[1:-1].replace("''", "'")

    def position_within(self, index: int) -> int:
        """The column at which character `index` of `string()` is written."""
        before = self.string()[:index]
        return self.position + 1 + len(before) + before.count("'")


def refusal(position: int, text: str, rule: str) -> InvalidExpression:
    """The one shape of every refusal: where, what is written there, the rule and the way out."""
    if len(text) > _SHOWN_CHARS_MAX:
        text = text[: _SHOWN_CHARS_MAX - 1] + "…"
    shown = f"at {text!r} " if text else ""
    return InvalidExpression(f"where expression refused {shown}(column {position}): {rule}")


def tokens_of(text: str) -> list[Token]:
    """All tokens of the expression, END included; raises InvalidExpression."""
    _check_text(text)
    tokens: list[Token] = []
    index = 0
    while True:
        index = _end_of_space(text, index)
        if index == len(text):
            tokens.append(Token(Kind.END, "", index + 1))
            return tokens
        token = _token_at(text, index)
        tokens.append(token)
        index += len(token.text)


_SPACE: Final = re.compile(r"[ \t\r\n]*")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_RUNS_ON: Final = re.compile(r"[A-Za-z0-9_.]+")
_STRING: Final = re.compile(r"'[^']*(?:''[^']*)*'(?!')")

_SYMBOLS: Final = ("<>", "<=", ">=", "<", ">", "=", "(", ")", "[", "]", ",", ".", "-")
_ARITHMETIC: Final = "arithmetic is not part of the language: compare with the computed number"
_COMMENT: Final = "comments are not part of the language: remove the comment"
# Common in other dialects, no part of this language.
_ADVICE: Final = {
    "<=>": "there is no null-safe equality: combine = with IS NULL or IS NOT NULL",
    "!=": "not equal is written <>",
    "==": "equality is written =",
    "&&": "conjunction is written AND",
    "||": "disjunction is written OR, and joining strings is not part of the language",
    "--": _COMMENT,
    "/*": _COMMENT,
    "->": "a JSON field is written payload.field or payload['field']",
    "!": "negation is written NOT",
    '"': "strings and JSON keys are written in single quotes: payload['a b']",
    "`": "a JSON key that is not a plain word is written payload['a b']",
    "+": _ARITHMETIC + ", and a number is written without +",
    "*": _ARITHMETIC,
    "/": _ARITHMETIC,
    "%": _ARITHMETIC + "; in LIKE, % belongs inside the quotes",
    ";": "one expression only: remove the semicolon",
    ":": "JSON fields are written payload.field, casts are not part of the language",
    "?": "there are no parameters: write the value",
}
_SYMBOL: Final = re.compile(
    "|".join(map(re.escape, sorted((*_SYMBOLS, *_ADVICE), key=len, reverse=True)))
)


def _check_text(text: str) -> None:
    if len(text) > EXPRESSION_CHARS_MAX:
        raise refusal(
            EXPRESSION_CHARS_MAX + 1,
            text[EXPRESSION_CHARS_MAX:],
            f"it has {len(text)} characters, at most {EXPRESSION_CHARS_MAX} are allowed: "
            "split it, or use IN for a list of values",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise refusal(
            error.start + 1,
            text[error.start],
            "a lone surrogate is not a character: write the character itself",
        ) from None


def _end_of_space(text: str, index: int) -> int:
    match = _SPACE.match(text, index)
    assert match is not None  # it matches the empty string
    return match.end()


def _token_at(text: str, index: int) -> Token:
    position = index + 1
    if match := _WORD.match(text, index):
        word = match.group()
        return Token(Kind.KEYWORD if word.upper() in KEYWORDS else Kind.WORD, word, position)
    if match := _NUMBER.match(text, index):
        _check_number_ends(text, index, match.end())
        return Token(Kind.NUMBER, match.group(), position)
    if text[index] == "'":
        if match := _STRING.match(text, index):
            return Token(Kind.STRING, match.group(), position)
        raise refusal(
            position,
            text[index:],
            "the string does not end: close it with ', and write a quote inside it as ''",
        )
    if match := _SYMBOL.match(text, index):
        symbol = match.group()
        if symbol in _ADVICE:
            raise refusal(position, symbol, _ADVICE[symbol])
        return Token(Kind.SYMBOL, symbol, position)
    raise refusal(
        position,
        text[index],
        "this character has no meaning outside quotes: a JSON key goes into payload['…'], "
        "a value into '…'",
    )


def _check_number_ends(text: str, start: int, end: int) -> None:
    """`1.`, `1.2.3` and `12ab` are mistakes, not a number followed by something."""
    if match := _NUMBER_RUNS_ON.match(text, end):
        raise refusal(
            start + 1,
            text[start : match.end()],
            "this is neither a number nor a name: write numbers as 12, 1.5 or 1e3, "
            "and a JSON key that begins with a digit as payload['1st']",
        )
