"""Chromium, as the tests of the console use it; with SCREENSHOTS=DIR they make pictures there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

WAIT_MS: Final = 30_000
COLOURS: Final = 96  # of a picture: a page has few, and the file is a third of the size
FLAGS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def opened() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "make test-peers installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def watched(context: BrowserContext) -> Iterator[Page]:
    """A page of a context; AssertionError if one of its scripts fails, or breaks the policy."""
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console",
        lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None,
    )
    yield page
    context.close()
    assert wrong == []


def picture(page: Page, name: str) -> None:
    """Make a picture of the documentation anew, if told to."""
    directory = os.environ.get("SCREENSHOTS")
    if directory:
        with Image.open(BytesIO(page.screenshot(animations="disabled"))) as shot:
            small = shot.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
            small.save(Path(directory) / f"console-{name}.png", optimize=True)
