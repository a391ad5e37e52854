"""Does docs/CONFORMANCE.md answer every numbered statement of MQTT with a test that exists?"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "CONFORMANCE.md"
CITED_MAX = 5  # statements that one test may answer

# The statements of the specifications' appendix B, by section: 251 and 141 of them. Where a text
# prints an id otherwise (MQTT-4.2-1; MQTT-3.1.2.7 and MQTT-3-8.3-4), the regular form counts.
SECTIONS = {
    "5.0": """
        1.5.4/1-3 1.5.5/1 1.5.7/1 2.1.3/1 2.2.1/2-6 2.2.2/1
        3.1.0/1-2 3.1.2/1-30 3.1.3/1-12 3.1.4/1-6 3.2.0/1-2 3.2.2/1-22
        3.3.1/1-13 3.3.2/1-20 3.3.4/1-10 3.4.2/1-3 3.5.2/1-3 3.6.1/1 3.6.2/1-3 3.7.2/1-3
        3.8.1/1 3.8.3/1-5 3.8.4/1-8 3.9.2/1-2 3.9.3/1-2
        3.10.1/1 3.10.3/1-2 3.10.4/1-6 3.11.2/1-2 3.11.3/1-2 3.12.4/1
        3.14.0/1 3.14.1/1 3.14.2/1-4 3.14.4/1-3 3.15.1/1 3.15.2/1-3
        4.1.0/1-2 4.2.0/1 4.3.1/1 4.3.2/1-5 4.3.3/1-13 4.4.0/1-2 4.5.0/1-2 4.6.0/1-6
        4.7.0/1 4.7.1/1-2 4.7.2/1 4.7.3/1-4 4.8.2/1-6 4.9.0/1-3
        4.12.0/1-7 4.12.1/1-2 4.13.1/1 4.13.2/1 6.0.0/1-4
    """,
    "3.1.1": """
        1.5.3/1-3 2.2.2/1-2 2.3.1/1-7
        3.1.0/1-2 3.1.2/1-24 3.1.3/1-11 3.1.4/1-5 3.2.0/1 3.2.2/1-6
        3.3.1/1-12 3.3.2/1-3 3.3.4/1 3.3.5/1-2 3.6.1/1
        3.8.1/1 3.8.3/1-4 3.8.4/1-6 3.9.3/1-2 3.10.1/1 3.10.3/1-2 3.10.4/1-6 3.12.4/1
        3.14.1/1 3.14.4/1-3 4.1.0/1-2 4.3.1/1 4.3.2/1-2 4.3.3/1-2 4.4.0/1 4.5.0/1-2 4.6.0/1-6
        4.7.1/1-3 4.7.2/1 4.7.3/1-4 4.8.0/1-2 6.0.0/1-4 7.0.0/1-2 7.1.1/1 7.1.2/1
    """,
}
COUNTS = {"5.0": 251, "3.1.1": 141}
UNTESTABLE = {("3.1.1", "MQTT-7.0.0-1")}  # nothing that could be run: the row says why
versions = pytest.mark.parametrize("version", SECTIONS)


class Row(NamedTuple):
    """A statement of one version, and what answers it."""

    version: str
    id: str
    answer: str

    @property
    def citations(self) -> list[tuple[str, str, str]]:
        """(file, function, case or nothing)."""
        return re.findall(r"`(tests/[\w/]+\.py)::(\w+)(?:\[([^\]`]+)\])?`", self.answer)


def statements(version: str) -> list[str]:
    """Every id of a version, as the specification numbers them."""
    found = []
    for section in SECTIONS[version].split():
        number, _, bounds = section.partition("/")
        first, _, last = bounds.partition("-")
        found += [f"MQTT-{number}-{n}" for n in range(int(first), int(last or first) + 1)]
    return found


def read_rows(text: str) -> list[Row]:
    rows = []
    for part in text.split("\n## MQTT ")[1:]:
        version = part.split("\n", 1)[0].strip()
        for line in part.splitlines():
            if line.startswith("| MQTT-"):
                id, _, answer = line.strip("| ").split(" | ", 2)
                rows.append(Row(version, id, answer))
    return rows


@cache
def functions(file: str) -> dict[str, bool]:
    """The tests of a file, and whether each is parametrised."""
    path = ROOT / file
    if not path.is_file():
        return {}
    return {
        node.name: bool(node.decorator_list)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, FUNCTION) and node.name.startswith("test_")
    }


def unanswered(rows: list[Row]) -> list[str]:
    """What is wrong with the answers, row by row."""
    wrong = []
    for row in rows:
        if not row.citations and (row.version, row.id) not in UNTESTABLE:
            wrong.append(f"{row.version} {row.id}: no test")
        for file, function, case in row.citations:
            known = functions(file)
            if function not in known:
                wrong.append(f"{row.version} {row.id}: there is no {file}::{function}")
            elif case and not known[function]:
                wrong.append(f"{row.version} {row.id}: {function} has no cases")
    return wrong


def overworked(rows: list[Row]) -> list[str]:
    """Tests that answer more statements than one test can; the cases of one test count together."""
    cited: Counter[str] = Counter()
    for row in rows:
        cited.update({f"{file}::{function}" for file, function, _ in row.citations})
    return [f"{test} is cited {count} times" for test, count in cited.items() if count > CITED_MAX]


ROWS = read_rows(DOCUMENT.read_text())


@versions
def test_every_statement_has_one_row_and_no_other_id_has_any(version: str) -> None:
    expected = statements(version)
    assert len(expected) == len(set(expected)) == COUNTS[version]
    assert [row.id for row in ROWS if row.version == version] == expected


def test_every_statement_is_answered_by_tests_that_exist() -> None:
    assert unanswered(ROWS) == []


def test_no_test_answers_more_statements_than_it_can() -> None:
    assert overworked(ROWS) == []


def test_what_cannot_be_tested_says_why() -> None:
    for row in ROWS:
        if (row.version, row.id) in UNTESTABLE:
            assert row.answer.startswith("none: ") and len(row.answer) > 20


def test_check_notices_what_is_wrong() -> None:
    """Are a missing test, a missing case and a sixth citation found, and a good row left alone?"""
    here = "tests/docs/test_conformance.py"
    good = Row("5.0", "MQTT-1.5.4-1", f"`{here}::test_no_test_answers_more_statements_than_it_can`")
    cases = "test_every_statement_has_one_row_and_no_other_id_has_any"
    case = good._replace(answer=f"`{here}::{cases}[5.0]`")
    assert unanswered([good, case]) == overworked([good] * 5) == []
    assert len(overworked([good] * 6)) == 1
    assert (
        len(overworked([case] * 3 + [good._replace(answer=f"`{here}::{cases}[3.1.1]`")] * 3)) == 1
    )
    for answer in (
        "client: cannot be seen",
        "`tests/docs/test_conformance.py`",
        f"`{here}::test_no_such_thing`",
        "`tests/no_such_file.py::test_x`",
        good.answer[:-1] + "[5]`",
    ):
        assert len(unanswered([good._replace(answer=answer)])) == 1, answer


@pytest.mark.parametrize("directory", ["conformance", "scenarios"])
def test_tests_open_with_the_question_they_answer(directory: str) -> None:
    for path in sorted((ROOT / "tests" / directory).glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, FUNCTION) and node.name.startswith("test_"):
                assert "?" in (ast.get_docstring(node) or ""), f"{path.name}::{node.name}"
