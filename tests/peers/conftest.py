"""Chromium for the tests of the console: one for a file of tests, a window for each test.

Not one for a run: while it is open, its event loop counts as running in this process.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.peers.console.browsing import opened, watched


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails its test if a script does."""
    with watched(browser.new_context(viewport={"width": 1280, "height": 800})) as page:
        yield page
