"""Chromium for the tests of the console: one for all tests of a run, a window for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.peers.browsing import opened, watched


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with opened() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails its test if a script does."""
    with watched(browser.new_context(viewport={"width": 1280, "height": 800})) as page:
        yield page
