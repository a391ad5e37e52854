"""Does a filter expression mean what its table says, and does everything else say where it fails?

The table in tests/data/where_cases.json is shared by every evaluator. Random expressions are held
against `where_model`: printed and parsed back, and evaluated a second, slow way.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.core.where import COMPILED_MAX, compile_where, tree
from penstock.core.where.document import JSON_DEPTH_MAX
from penstock.core.where.parser import parse
from penstock.model.errors import InvalidExpression
from penstock.model.limits import EXPRESSION_CHARS_MAX, EXPRESSION_DEPTH_MAX
from penstock.model.record import Record
from tests.core.where.where_model import printed, slow_condition, slow_like
from tests.each import each
from tests.examples import examples

TABLE = json.loads((Path(__file__).parents[2] / "data" / "where_cases.json").read_text())

# The table ---------------------------------------------------------------------------------


def record_of(fields: dict[str, Any]) -> Record:
    """A record of the table: its own fields over the common ones."""
    merged = {**TABLE["record"], **fields}
    payload = merged["payload"].encode()
    if "payload_base64" in merged:
        payload = base64.b64decode(merged["payload_base64"])
    return Record(
        topic=merged["topic"],
        partition=0,
        offset=merged["offset"],
        timestamp=merged["timestamp"],
        name=merged["name"],
        payload=payload,
        headers=tuple((key, value) for key, value in merged["headers"]),
        publisher=merged["publisher"],
    )


def with_payload(payload: bytes) -> Record:
    return Record("sensors", 0, 7, 1_767_225_600_000_000, "sensors/42/temp", payload)


CASES = [{**case, "about": group["about"]} for group in TABLE["groups"] for case in group["cases"]]


def title(case: dict[str, Any]) -> str:
    return f"{case['about']}: {case['expression']}"


@each("case", CASES, ids=title)
def test_expression_has_the_answer_of_the_table(case: dict[str, Any]) -> None:
    where = compile_where(case["expression"])
    record = record_of(case["record"])
    assert where.evaluate(record) is case["expected"]
    assert where.passes(record) is (case["expected"] is True)


@each("case", CASES, ids=title)
def test_slow_evaluator_agrees_with_the_table(case: dict[str, Any]) -> None:
    assert slow_condition(parse(case["expression"]), record_of(case["record"])) is case["expected"]


def position_in(error: InvalidExpression) -> int:
    match = re.search(r"\(column (\d+)\)", str(error))
    assert match is not None, error
    return int(match.group(1))


@each("case", TABLE["refused"], ids=lambda case: case["expression"])
def test_anything_else_is_refused_at_its_column_with_the_way_out(case: dict[str, Any]) -> None:
    with pytest.raises(InvalidExpression) as refused:
        compile_where(case["expression"])
    assert position_in(refused.value) == case["position"]
    assert case["says"] in str(refused.value)


def test_refusal_shows_the_offending_text_but_not_a_page_of_it() -> None:
    with pytest.raises(InvalidExpression, match=r"refused at '!=' \(column 6\)"):
        compile_where("name != 'a'")
    with pytest.raises(InvalidExpression) as refused:
        compile_where("name = '" + "x" * 4_000)
    assert len(str(refused.value)) < 200


# Bounds ------------------------------------------------------------------------------------


def test_expression_of_the_longest_length_is_taken_and_one_more_is_not() -> None:
    longest = "TRUE".ljust(EXPRESSION_CHARS_MAX)
    assert compile_where(longest).evaluate(with_payload(b"")) is True
    with pytest.raises(InvalidExpression, match="4097 characters") as refused:
        compile_where(longest + " ")
    assert position_in(refused.value) == EXPRESSION_CHARS_MAX + 1


def nested(level: str, levels: int) -> str:
    """`level` opens one more parenthesis each time."""
    return level * levels + "payload.a" + ")" * (level.count("(") * levels)


@pytest.mark.parametrize("level", ["(", "NOT ", "TRUE AND (", "FALSE OR TRUE AND ("])
def test_deepest_nesting_is_taken_and_one_more_is_refused(level: str) -> None:
    record = with_payload(b'{"a":true}')
    deepest = compile_where(nested(level, EXPRESSION_DEPTH_MAX))
    assert deepest.evaluate(record) is (EXPRESSION_DEPTH_MAX % 2 == 0 or level != "NOT ")
    with pytest.raises(InvalidExpression, match="deeper than 64") as refused:
        compile_where(nested(level, EXPRESSION_DEPTH_MAX + 1))
    opening = level.index("(") if "(" in level else 0
    assert position_in(refused.value) == len(level) * EXPRESSION_DEPTH_MAX + opening + 1


def test_siblings_do_not_count_as_depth() -> None:
    text = " AND ".join(["(NOT (FALSE))"] * 200)
    assert compile_where(text).evaluate(with_payload(b"")) is True


def test_deepest_expression_reads_the_deepest_json() -> None:
    levels = JSON_DEPTH_MAX - 1
    payload = b'{"a":' + b"[" * levels + b"]" * levels + b"}"
    text = nested("FALSE OR TRUE AND (NOT NOT ", EXPRESSION_DEPTH_MAX // 3)
    where = compile_where(text.replace("payload.a", "payload.a IS NOT NULL"))
    assert where.evaluate(with_payload(payload)) is True


@pytest.mark.parametrize(
    ("levels", "is_valid"),
    [(1, True), (JSON_DEPTH_MAX - 1, True), (JSON_DEPTH_MAX, False), (900, False), (10**6, False)],
)
def test_json_nested_too_deep_is_invalid_json(levels: int, is_valid: bool) -> None:
    where = compile_where("payload.a = 1")
    array = b'{"a":1,"b":' + b"[" * levels + b"]" * levels + b"}"
    objects = b'{"a":1,"b":' + b'{"x":' * levels + b"0" + b"}" * levels + b"}"
    with_siblings = array[:-1] + b',"c":[' + b"[]," * JSON_DEPTH_MAX + b"0]}"
    for payload in (array, objects, with_siblings):
        assert where.evaluate(with_payload(payload)) is (True if is_valid else None)


def test_many_brackets_side_by_side_or_in_strings_are_not_depth() -> None:
    where = compile_where("payload.a = 1")
    wide = json.dumps({"a": 1, "b": [[{}]] * 5_000}).encode()
    quoted = json.dumps({"a": 1, "b": "[{" * 5_000}).encode()
    assert where.evaluate(with_payload(wide)) is True
    assert where.evaluate(with_payload(quoted)) is True


def test_nearly_full_stack_is_never_mistaken_for_invalid_json() -> None:
    where = compile_where("payload.a = 1")
    record = with_payload(b'{"a":1,"b":' + b"[" * 200 + b"]" * 200 + b"}")
    answers: list[bool | None] = []

    def descend() -> None:
        try:
            answers.append(where.evaluate(record))
        except RecursionError:
            return
        descend()

    with contextlib.suppress(RecursionError):
        descend()
    assert len(answers) > 10
    assert set(answers) == {True}


def test_like_of_many_wildcards_on_a_long_text_ends() -> None:
    # A backtracking matcher needs longer than the universe for the first two.
    record = with_payload(b"a" * 20_000)
    assert compile_where("payload LIKE '" + "%a" * 60 + "%b'").evaluate(record) is False
    assert compile_where("payload LIKE '" + "%a_" * 60 + "%b%'").evaluate(record) is False
    assert compile_where("payload LIKE '" + "%a_" * 60 + "%'").evaluate(record) is True


# What is compiled, kept and read -----------------------------------------------------------


def test_compiled_expression_is_kept_within_a_bound() -> None:
    first = compile_where("name = 'kept'")
    assert compile_where("name = 'kept'") is first
    assert first.text == "name = 'kept'"
    assert first.tree == tree.Compare("=", tree.Column("name"), tree.Text("kept"))
    for number in range(COMPILED_MAX):
        compile_where(f"offset = {number}")
    again = compile_where("name = 'kept'")
    assert again is not first and again == first


class CountingRecord:
    """A record that counts how often its payload is asked for."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.payload_reads = 0

    @property
    def payload(self) -> bytes:
        self.payload_reads += 1
        return self._record.payload

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)


@pytest.mark.parametrize(
    ("expression", "reads"),
    [
        ("name = 'x' OR offset = 7", 0),
        ("name = 'x' AND payload.a = 1", 0),
        ("payload.a = 1 AND name = 'x'", 0),
        ("NOT (payload.a = 1) AND (payload.b OR TRUE) AND name = 'x'", 0),
        ("payload.a = 1 OR offset = 7", 0),
        ("payload.a BETWEEN payload.b AND payload.c OR name = 'sensors/42/temp'", 0),
        ("payload.x IN (1) AND name = 'x'", 0),
        ("payload.x LIKE 'a' AND name = 'x'", 0),
        ("payload.x IS NULL AND name = 'x'", 0),
        ("5 > payload.x AND name = 'x'", 0),
        ("payload.a = 1 AND payload.b = 2 AND payload.a < payload.b", 1),
        ("payload.a BETWEEN payload.b AND payload.c", 1),
        ("payload.x = 1 OR payload.y = 1 OR payload.z", 1),
        ("payload.x.y = 1 OR payload[0] = 1 OR payload.x.z", 1),
    ],
)
@pytest.mark.parametrize("payload", [b'{"a":1,"b":2}', b"not json", b"null"])
def test_json_is_read_at_most_once_and_only_when_needed(
    expression: str, reads: int, payload: bytes
) -> None:
    record = CountingRecord(with_payload(payload))
    compile_where(expression).evaluate(cast(Record, record))
    assert record.payload_reads == reads


# Times -------------------------------------------------------------------------------------


@given(
    st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 12, 31)),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_time_literal_means_the_moment_it_names(local: datetime, zone_minutes: int) -> None:
    moment = local.replace(tzinfo=timezone(timedelta(minutes=zone_minutes)))
    expected_us = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    text = moment.isoformat()
    assert parse(f"timestamp = '{text}'") == tree.Compare(
        "=", tree.Column("timestamp"), tree.Time(text, expected_us)
    )


# Random trees ------------------------------------------------------------------------------

KEYS = ("a", "b", "A", "a b", "", "it's", "in", "é")
TEXTS = st.sampled_from(
    ["", "a", "b", "ab", "aab", "1", "true", "it's", "a%_\\", "é", "\U0001f600"]
)
INTEGERS = st.sampled_from(
    [0, 1, -1, 2, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**63 - 1025]
) | st.integers(-(2**63), 2**63 - 1)
DOUBLES = st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0**53, 2.0**63, -(2.0**63), 1e300]) | st.floats(
    allow_nan=False, allow_infinity=False
)
TIMES = {"1970-01-01T00:00:00Z": 0, "1970-01-01T00:00:00.000001Z": 1}
WORDS = "payload name timestamp headers 'a' '' 1e9 <> NOT AND OR IN BETWEEN LIKE IS NULL TRUE"
PIECES = (*WORDS.split(), *'.[](),=<-%\\"é90x')
PATTERNS = st.lists(st.sampled_from(["%", "_", "a", "b", "é", "\\%", "\\_", "\\\\"]), max_size=6)

paths = st.builds(
    tree.Path,
    st.lists(st.sampled_from(KEYS) | st.integers(0, 2), min_size=1, max_size=3).map(tuple),
)
references = (
    paths
    | st.builds(tree.Column, st.sampled_from(["name", "offset", "topic", "publisher", "payload"]))
    | st.builds(tree.Header, st.sampled_from(KEYS))
)
constants = (
    st.just(tree.Null())
    | st.builds(tree.Boolean, st.booleans())
    | st.builds(tree.Integer, INTEGERS)
    | st.builds(tree.Double, DOUBLES)
    | st.builds(tree.Text, TEXTS)
)
operands = references | constants
operators = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
timestamp = st.just(tree.Column("timestamp"))
moments = st.sampled_from([tree.Time(text, us) for text, us in TIMES.items()])
beside_timestamp = moments | st.builds(tree.Integer, INTEGERS) | paths

leaves = (
    st.builds(tree.Truth, paths)
    | st.builds(tree.Boolean, st.booleans())
    | st.just(tree.Null())
    | st.builds(tree.Compare, operators, operands, operands)
    | st.builds(tree.Compare, operators, paths, paths)
    | st.builds(tree.Compare, operators, timestamp, beside_timestamp)
    | st.builds(tree.Compare, operators, moments, timestamp)
    | st.builds(tree.In, operands, st.lists(constants, min_size=1, max_size=4).map(tuple))
    | st.builds(tree.In, timestamp, st.lists(moments, min_size=1, max_size=3).map(tuple))
    | st.builds(tree.Between, operands, operands, operands)
    | st.builds(tree.Between, timestamp, beside_timestamp, beside_timestamp)
    | st.builds(tree.Like, operands, PATTERNS.map("".join))
    | st.builds(tree.IsNull, operands)
)


def joined(inner: st.SearchStrategy[tree.Condition]) -> st.SearchStrategy[tree.Condition]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.builds(tree.Not, inner) | st.builds(tree.And, several) | st.builds(tree.Or, several)


conditions = st.recursive(leaves, joined, max_leaves=12)

scalars = st.none() | st.booleans() | INTEGERS | DOUBLES | TEXTS | st.just(10**400)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=12,
)
payloads = documents.map(lambda value: json.dumps(value, ensure_ascii=False).encode())
records = st.builds(
    Record,
    topic=TEXTS,
    partition=st.just(0),
    offset=INTEGERS,
    timestamp=st.sampled_from([0, 1, 2]),
    name=TEXTS,
    payload=payloads | payloads.map(lambda text: text[:-1]) | st.binary(max_size=6),
    headers=st.lists(st.tuples(st.sampled_from(KEYS), TEXTS), max_size=3).map(tuple),
    publisher=TEXTS,
)


@examples(200)
@given(conditions, st.booleans())
def test_printed_tree_parses_back_to_itself(condition: tree.Condition, is_terse: bool) -> None:
    text = printed(condition, is_terse)
    assume(len(text) <= EXPRESSION_CHARS_MAX)
    assert parse(text) == condition


@examples(300)
@given(conditions, st.lists(records, min_size=1, max_size=3))
def test_random_expression_agrees_with_the_slow_evaluator(
    condition: tree.Condition, candidates: list[Record]
) -> None:
    text = printed(condition, is_terse=True)
    assume(len(text) <= EXPRESSION_CHARS_MAX)
    where = compile_where(text)
    for record in candidates:
        assert where.evaluate(record) is slow_condition(condition, record)


@examples(500)
@given(st.lists(st.sampled_from("ab%_"), max_size=8), st.text("ab", max_size=10))
def test_like_agrees_with_matching_letter_by_letter(pattern: list[str], text: str) -> None:
    where = compile_where("payload LIKE '" + "".join(pattern) + "'")
    assert where.evaluate(with_payload(text.encode())) is slow_like("".join(pattern), text)


@examples(300)
@given(
    st.lists(
        st.sampled_from(PIECES),
        max_size=12,
    ),
    st.sampled_from(["", " "]),
)
def test_any_text_parses_or_is_refused_within_itself(pieces: list[str], space: str) -> None:
    text = space.join(pieces)
    try:
        parse(text)
    except InvalidExpression as error:
        assert 1 <= position_in(error) <= len(text) + 1


@given(st.text())
def test_any_unicode_parses_or_is_refused(text: str) -> None:
    try:
        parse(text)
    except InvalidExpression as error:
        assert 1 <= position_in(error) <= len(text) + 1


def test_lone_surrogate_is_refused_where_it_stands() -> None:
    with pytest.raises(InvalidExpression, match="surrogate") as refused:
        compile_where("name = 'a\ud800'")
    assert position_in(refused.value) == 10
