"""How the demonstration speaks: numbered headings, lines below them, and why it failed."""

from __future__ import annotations

import sys
import textwrap
from typing import Final

WIDTH: Final = 88


class Failed(Exception):
    """The demonstration did not work out; `details` are lines of whoever failed."""

    def __init__(self, why: str, details: list[str] | None = None) -> None:
        super().__init__(why)
        self.details = details or []


class Story:
    """Tells what happens, step by step."""

    def __init__(self) -> None:
        self._number = 0
        self._is_interrupted = False
        self._is_bold = sys.stdout.isatty()

    def interrupt(self, *_: object) -> None:
        """The handler of Ctrl-C."""
        self._is_interrupted = True
        raise KeyboardInterrupt

    def check_interrupted(self) -> None:
        """Python drops what a handler raises while it runs the callback of a weak reference."""
        if self._is_interrupted:
            raise KeyboardInterrupt

    def chapter(self, title: str, explanation: str) -> None:
        self.check_interrupted()
        self._number += 1
        head = f"{self._number}. {title}"
        print(f"\n\x1b[1m{head}\x1b[0m" if self._is_bold else f"\n{head}")
        print(textwrap.fill(explanation, WIDTH, initial_indent="   ", subsequent_indent="   "))
        sys.stdout.flush()

    def line(self, text: str) -> None:
        print(f"     {text}", flush=True)
