"""The code blocks of the README and of the pages of the documentation, in their order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    page: str  # such as HTTP.md
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line, which identifies it on its page."""
        return self.text.split("\n", 1)[0]

    @property
    def lines(self) -> list[str]:
        """Its commands: lines that end with a backslash go on, and a prompt is none of them."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        return [line.removeprefix("$ ") for line in joined.splitlines() if line]


def all_blocks() -> list[Block]:
    return [
        Block(page.name, language, text)
        for page in PAGES
        for language, text in BLOCK.findall(page.read_text())
    ]


def find(page: str, first: str) -> Block:
    """The block of a page whose first line begins like this."""
    (found,) = [
        block for block in all_blocks() if block.page == page and block.first.startswith(first)
    ]
    return found
