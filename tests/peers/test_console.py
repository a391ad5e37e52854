"""The console in a real browser: does each page show what the broker has, to whom it may?

With SCREENSHOTS=DIR the pictures of the documentation are made anew there.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Final

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.http.asking import Asking
from tests.waiting import wait_until

WAIT_MS: Final = 30_000
PAGES: Final = {
    "overview": "Overview",
    "topics": "Topics",
    "topics/sensors": "sensors",
    "messages/sensors?from=earliest": "Messages",
    "clients": "Clients",
    "readers": "Readers",
    "retained": "Retained",
    "pipelines": "Pipelines",
    "access": "Access",
}
FLAGS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Each text on the page whose contrast with its ground is below 4.5 (WCAG 2.2, 1.4.3).
PALE_TEXTS: Final = """() => {
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) =>
    0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const found = [];
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !one.checkVisibility() || one.closest(".hidden, .skip, option, noscript")) continue;
    const style = getComputedStyle(one);
    let ground = one, back;
    do { back = rgb(getComputedStyle(ground).backgroundColor); ground = ground.parentElement; }
    while (ground && back.length === 4 && back[3] === 0);
    const front = rgb(one instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(front), light(back)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${one.tagName} ${one.textContent.trim().slice(0, 30)} ${ratio}`);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "make test-peers installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails its test if a script does."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    yield from watched(context)


def watched(context: BrowserContext) -> Iterator[Page]:
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


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """A broker with a little of everything."""
    with Hosted(tmp_path_factory.mktemp("data")) as broker, Asking(broker.ports["http"]) as asking:
        for topic in ("sensors", "orders"):
            assert asking.ask("PUT", f"/v1/topics/{topic}", {}).status == 201
        messages = [
            {"name": f"sensors/{at % 5}/temp", "payload": {"celsius": 15 + at}, "retain": at < 3}
            for at in range(40)
        ]
        assert asking.ask("POST", "/v1/topics/sensors/records", messages).status == 200
        asking.ask("PUT", "/v1/topics/sensors/consumers/billing", {"from": "earliest"})
        asking.ask("POST", "/v1/topics/sensors/groups/workers/fetch", {"limit": 3})
        yield broker


def address(broker: Hosted) -> str:
    return f"http://127.0.0.1:{broker.ports['http']}/"


def go(page: Page, broker: Hosted, where: str) -> None:
    page.goto(f"{address(broker)}#/{where}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
def test_every_page_can_be_read_in_both_themes_on_wide_and_narrow_screens(
    browser: Browser, broker: Hosted, scheme: str, width: int
) -> None:
    pictures = os.environ.get("SCREENSHOTS")
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    for page in watched(context):
        for where, heading in PAGES.items():
            go(page, broker, where)
            expect(page.locator("h1")).to_have_text(heading)
            page.wait_for_load_state("networkidle")
            assert page.locator(".problem:visible").count() == 0, where
            assert page.evaluate("document.documentElement.scrollWidth") <= width, where
            assert page.evaluate(PALE_TEXTS) == [], where
            if pictures and (width == 1280) == (scheme == "light"):
                name = where.partition("?")[0].replace("/", "-")
                page.screenshot(path=Path(pictures) / f"console-{name}-{width}.png")


def test_every_control_has_a_name_and_shows_when_it_has_the_focus(
    page: Page, broker: Hosted
) -> None:
    go(page, broker, "messages/sensors?from=earliest")
    expect(page.get_by_role("button", name="Open").first).to_be_visible()
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, textarea, button, a")]
        .filter((one) => one.checkVisibility() && !one.textContent.trim() && !one.labels?.length
          && !one.ariaLabel).map((one) => one.outerHTML)"""
    )
    assert unnamed == []
    seen = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "[document.activeElement.textContent || document.activeElement.id,"
            " getComputedStyle(document.activeElement).outlineStyle]"
        )
        assert outline == "solid", name
        seen.add(name.strip())
    assert {"Overview", "Topics", "Messages", "Browse", "Follow live"} <= seen


def test_messages_appear_live_and_one_that_is_published_in_the_page_reaches_mqtt(
    page: Page, broker: Hosted
) -> None:
    go(page, broker, "messages/sensors")
    page.get_by_role("button", name="Follow live").click()
    expect(page.get_by_text("Following.")).to_be_visible()
    command = ["-p", str(broker.port), "-q", "1"]
    subject = ["mosquitto_sub", *command, "-t", "sensors/page", "-C", "1", "-W", "60"]
    with subprocess.Popen(subject, stdout=subprocess.PIPE, text=True) as listening:
        assert listening.stdout is not None
        wait_until(lambda: broker.call(lambda: broker.exchange.sessions.subscription_count == 1))
        page.get_by_label("Name", exact=True).fill("sensors/page")
        page.get_by_label("Payload", exact=True).fill("from the page")
        page.get_by_role("button", name="Publish", exact=True).click()
        expect(page.get_by_text("Stored at offset")).to_be_visible()
        assert "from the page" in listening.stdout.read()
    row = page.get_by_role("row").filter(has_text="from the page")
    expect(row).to_be_visible()
    sent = ["mosquitto_pub", *command, "-t", "sensors/device", "-m", "from a device"]
    subprocess.run(sent, check=True, timeout=30)
    expect(page.get_by_role("row").filter(has_text="from a device")).to_be_visible()
    row.get_by_role("button", name="Open").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Hex", exact=True).click()
    expect(dialog).to_contain_text("66 72 6f 6d 20 74 68 65")


def test_what_is_wrong_with_an_expression_is_said_below_it(page: Page, broker: Hosted) -> None:
    go(page, broker, "messages/sensors?from=earliest")
    page.get_by_label("Where").fill("payload.celsius >")
    page.get_by_role("button", name="Browse").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Where").fill("payload.celsius > 52")
    page.get_by_role("button", name="Browse").click()
    expect(page.get_by_text("2 messages;")).to_be_visible()


def test_settings_of_a_topic_are_changed_and_a_wrong_value_is_refused(
    page: Page, broker: Hosted
) -> None:
    go(page, broker, "topics/orders")
    age = page.get_by_label("Keep records for")
    expect(age).to_have_value("7d")
    age.fill("next week")
    page.get_by_role("button", name="Save the settings").click()
    expect(page.get_by_role("alert")).to_contain_text("next week")
    age.fill("12h")
    page.get_by_role("button", name="Save the settings").click()
    expect(page.get_by_text("12 h", exact=True)).to_be_visible()


def test_the_overview_moves(page: Page, broker: Hosted) -> None:
    go(page, broker, "overview")
    expect(page.get_by_text("No reader is behind.")).to_be_hidden()
    tile = page.locator(".tile").first
    expect(tile).to_contain_text("records in")
    with Asking(broker.ports["http"]) as asking:
        asking.ask("POST", "/v1/topics/orders/records", [{"payload": "x"}] * 500)
    line = page.locator(".chart").first.locator(".legend")
    expect(line).not_to_contain_text("stored 0/s")


def test_a_user_signs_in_sees_what_it_may_and_signs_out(page: Page, tmp_path: Path) -> None:
    adding = Thread(target=add_users, args=[tmp_path], kwargs={"boss": "first", "worker": "second"})
    adding.start()  # playwright has a loop in this thread
    adding.join()
    with Hosted(tmp_path) as broker:
        page.goto(address(broker))
        expect(page.locator("h1")).to_have_text("Sign in")
        page.get_by_label("User").fill("worker")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.get_by_label("Password").fill("second")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("h1")).to_have_text("Overview")
        expect(page.locator("#who")).to_contain_text("worker")
        assert page.get_by_role("link", name="Access").count() == 0
        page.get_by_role("button", name="Sign out").click()
        expect(page.locator("h1")).to_have_text("Sign in")
        page.get_by_label("User").fill("boss")
        page.get_by_label("Password").fill("first")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="Access").click()
        expect(page.get_by_role("cell", name="worker", exact=True)).to_be_visible()


def test_the_page_goes_on_by_itself_when_the_broker_was_away(page: Page, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        http = f"127.0.0.1:{free.getsockname()[1]}"
    with Hosted(tmp_path, http__listen=http) as broker:
        go(page, broker, "topics")
        expect(page.get_by_text("There is no topic yet.")).to_be_visible()
    expect(page.get_by_text("The broker does not answer.")).to_be_visible()
    with Hosted(tmp_path, http__listen=http) as broker, Asking(broker.ports["http"]) as asking:
        asking.ask("PUT", "/v1/topics/back", {})
        expect(page.get_by_role("link", name="back")).to_be_visible()
        expect(page.get_by_text("The broker does not answer.")).to_be_hidden()
