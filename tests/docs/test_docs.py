"""Do the documents tell the truth about the files they name?"""

from __future__ import annotations

import re
from pathlib import Path

from tests.each import each

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
SOURCE = re.compile(r"`((?:model|core|mqtt|log|catalog|broker|doors|pipeline|app|cli)/[\w/]+\.py)`")


def prose(path: Path) -> str:
    """The text without its code blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The headings of a document, as links write them."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@each("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_resolve(document: Path) -> None:
    broken = []
    for link in LINK.findall(prose(document)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@each("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_a_document_names_exists(document: Path) -> None:
    missing = []
    for file, name in TEST.findall(document.read_text()):
        path = ROOT / file
        if not path.is_file() or (name and f"def {name}(" not in path.read_text()):
            missing.append(f"{file}::{name}")
    assert missing == []


@each("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_source_that_a_document_names_exists(document: Path) -> None:
    named = SOURCE.findall(document.read_text())
    assert [file for file in named if not (ROOT / "src" / "penstock" / file).is_file()] == []


def test_every_test_world_has_a_name_of_its_own_that_hacking_lists() -> None:
    sources = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    worlds = [name for text in sources for name in re.findall(r"^class (\w*World)\b", text, re.M)]
    text = (ROOT / "docs" / "HACKING.md").read_text()
    rows = re.findall(r"^\| (`\w*World`.*?) \|", text, re.MULTILINE)
    assert sorted(worlds) == sorted(name for row in rows for name in re.findall(r"`(\w+)`", row))


def test_every_sentence_of_the_seeds_has_an_answer() -> None:
    """A row is a sentence, and a test, a deviation or a `later` beside it."""
    text = (ROOT / "docs" / "SEEDS.md").read_text().partition("\n## 000 ")[2]
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    answers = [
        row.strip("| ").split(" | ") for row in rows if not row.startswith("| the seed says")
    ]
    assert len(answers) > 100
    for row in answers:
        assert len(row) == 2, row
        answer = row[1]
        assert TEST.search(answer) or answer.startswith(("deviation: ", "later: ", "no rule: ")), (
            row
        )


def test_the_seeds_that_are_complete_leave_nothing_for_later() -> None:
    text = (ROOT / "docs" / "SEEDS.md").read_text()
    for title in ("000", "001", "002", "003", "004"):
        section = text.split(f"## {title} ")[1].split("\n## ")[0]
        assert "`tests/" in section
        assert "later: " not in section


def test_the_import_table_stands_in_the_architecture_as_in_the_rule() -> None:
    rule = (ROOT / "pyproject.toml").read_text().split("rooms = [")[1].split("]")[0]
    rooms = re.findall(r'"(\w+): ([\w ]+)"', rule)
    table = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    for room, allowed in rooms:
        (row,) = re.findall(rf"^\| `{room}`.*\| ([\w, ]+) \|$", table, re.MULTILINE)
        assert set(row.split(", ")) == set(allowed.split()), room
