"""Does the check of sizes notice what is too long, and nothing else?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.engine import ROOT
from tools.limits import broken_limits


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("call(1, 2, 3, 4, 5, 6)\n", "a.py:1: call is given 6 arguments by position"),
        ("one.call(1, 2, 3, 4, 5, *rest)\n", "a.py:1: one.call is given 6 arguments"),
        ("call(*(1, 2, 3), *[4, 5, 6])\n", "a.py:1: call is given 6 arguments by position"),
        ("to_thread(call, 1, 2, 3, 4, 5, 6)\n", "a.py:1: to_thread is given 6 arguments"),
        ("async def f():\n" + "    pass\n" * 60, "a.py:1: f has 61 lines"),
        ("pass\n" * 501, "a.py: 501 lines"),
    ],
)
def test_what_exceeds_a_limit_is_reported_with_its_place(text: str, expected: str) -> None:
    (line,) = broken_limits(Path("a.py"), text)
    assert line.startswith(expected)


@pytest.mark.parametrize(
    "text",
    [
        "call(1, 2, 3, 4, 5, sixth=6)\n",
        "call(a=1, b=2, c=3, d=4, e=5, f=6)\n",
        "partial(call, 1, 2, 3, 4, 5)\n",
        "database.execute('insert', 1, 2, 3, 4, 5, 6)\n",
        "def f():\n" + "    pass\n" * 59,
        "pass\n" * 500,
    ],
)
def test_what_keeps_the_limits_is_not_reported(text: str) -> None:
    assert list(broken_limits(Path("a.py"), text)) == []


def test_every_source_keeps_the_limits() -> None:
    found = [
        line
        for path in (ROOT / "src").rglob("*.py")
        for line in broken_limits(path.relative_to(ROOT), path.read_text())
    ]
    assert found == []
