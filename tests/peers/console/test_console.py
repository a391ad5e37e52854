"""The console in a real browser: does each page show what the broker has, to whom it may?

With SCREENSHOTS=DIR the pictures of the documentation are made anew there.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from penstock.mqtt.kinds import MQTT_5
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire, kept
from tests.http.asking import Asking
from tests.peers.console.browsing import picture, watched
from tests.peers.console.console_house import MINUTE_US, address, enliven, furnished, go
from tests.tenants.test_tenants_apart import Asker, add_tenants, login
from tests.waiting import wait_until

PAGES: Final = {
    "overview": "Overview",
    "trace": "Trace",
    "trace/sensors%4039": "Trace",
    "topics": "Topics",
    "topics/sensors": "sensors",
    "messages/sensors": "Messages",
    "retained": "Retained",
    "clients": "Clients",
    "readers": "Consumers and groups",
    "pipelines": "Pipelines",
    "access": "Access",
}
# Where a page is shown in the documentation, and in which theme.
PICTURES: Final = {
    ("overview", 1280, "light"): "overview",
    ("overview", 380, "light"): "overview-phone",
    ("messages/sensors", 1280, "light"): "messages",
    ("messages/sensors", 380, "dark"): "messages-phone",
    ("trace/sensors%4039", 1280, "light"): "record",
    ("topics/sensors", 1280, "light"): "topic",
    ("readers", 1280, "light"): "readers",
    ("pipelines", 1280, "dark"): "pipelines",
}
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
COPIED: Final = ("name", "payload", "payload_base64", "kind", "headers", "retain")
UNNAMED: Final = """() =>
  [...document.querySelectorAll("input, select, textarea, button, a, progress")]
  .filter((one) => one.checkVisibility() && !one.textContent.trim() && !one.labels?.length
    && !one.ariaLabel).map((one) => one.outerHTML)"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with furnished(tmp_path_factory.mktemp("data")) as broker:
        if os.environ.get("SCREENSHOTS"):
            enliven(broker)
        yield broker


def loaded(page: Page) -> None:
    """Until the page has asked for what it shows; a trace that waits for events is no page."""
    expect(page.locator("h1")).not_to_be_empty()
    page.wait_for_load_state("networkidle")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
def test_every_page_can_be_read_in_both_themes_on_wide_and_narrow_screens(
    browser: Browser, broker: Hosted, scheme: str, width: int
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    with watched(context) as page:
        for where, heading in PAGES.items():
            go(page, broker, where)
            expect(page.locator("h1")).to_have_text(heading)
            loaded(page)
            assert page.locator(".problem:visible").count() == 0, where
            assert page.evaluate("document.documentElement.scrollWidth") <= width, where
            assert page.evaluate(PALE_TEXTS) == [], where
            assert page.evaluate(UNNAMED) == [], where
            if (where, width, scheme) in PICTURES:
                picture(page, PICTURES[where, width, scheme])


def test_the_pages_can_be_reached_and_used_with_the_keyboard_alone(
    page: Page, broker: Hosted
) -> None:
    go(page, broker, "overview")
    loaded(page)
    page.locator("body").press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for name in ("Penstock", "Theme", "Overview", "Trace", "Topics", "Messages"):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        expect(focused).to_contain_text(name)
        assert focused.evaluate("(one) => getComputedStyle(one).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Messages")
    page.get_by_label("From").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("earliest")
    with page.expect_response(lambda answer: "from=earliest" in answer.url):
        page.keyboard.press("Enter")
    loaded(page)  # what was shown before has been replaced
    expect(page.get_by_role("button", name="Open").first).to_be_visible()
    page.get_by_role("button", name="Open").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.get_by_role("button", name="Open").first).to_be_focused()


def test_several_nodes_are_shown_and_one_can_be_drained(page: Page, broker: Hosted) -> None:
    """The broker of these tests is alone: its answers are those of two nodes."""
    nodes = [node("plant-a", 3, is_self=True), node("plant-b", 4, is_self=False)]
    page.route("**/v1/nodes", lambda route: route.fulfill(json={"nodes": nodes}))

    def drain(route: Route) -> None:
        assert route.request.post_data_json == {"drain": True}
        nodes[1]["state"] = "draining"
        route.fulfill(json=nodes[1])

    page.route("**/v1/nodes/4/drain", drain)
    go(page, broker, "overview")
    page.get_by_role("link", name="Nodes").click()
    row = page.get_by_role("row", name="plant-b")
    expect(page.get_by_role("row", name="plant-a (this one) live")).to_be_visible()
    row.get_by_role("button", name="Drain").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(row).to_contain_text("draining")
    expect(row.get_by_role("button", name="Take clients again")).to_be_visible()


def node(name: str, incarnation: int, *, is_self: bool) -> dict[str, object]:
    """As `GET /v1/nodes` shows it."""
    shown = {"name": name, "incarnation": incarnation, "state": "live", "is_self": is_self}
    load = {"clients": 12, "sessions": 30, "version": "1.0", "since": MINUTE_US, "lease": 8.5}
    return shown | load | {"address": f"{name}:1883"}


def test_a_broker_that_is_alone_shows_no_page_of_nodes(page: Page, broker: Hosted) -> None:
    go(page, broker, "overview")
    expect(page.get_by_role("link", name="Access")).to_be_visible()
    expect(page.get_by_role("link", name="Nodes")).to_have_count(0)


def test_a_theme_that_was_chosen_stays(page: Page, broker: Hosted) -> None:
    go(page, broker, "topics")
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.get_by_role("button", name="Theme").click()
    assert page.evaluate(ground) != before
    page.reload()
    expect(page.locator("h1")).to_have_text("Topics")
    assert page.evaluate(ground) != before


def test_messages_appear_live_and_one_that_is_published_in_the_page_reaches_mqtt(
    page: Page, broker: Hosted
) -> None:
    go(page, broker, "messages/sensors")
    page.get_by_role("button", name="Follow live").click()
    expect(page.get_by_text("Following.")).to_be_visible()
    command = ["-p", str(broker.port), "-q", "1"]
    subject = ["mosquitto_sub", *command, "-t", "sensors/page", "-C", "1", "-W", "60"]
    before = broker.call(lambda: broker.exchange.sessions.subscription_count)
    with subprocess.Popen(subject, stdout=subprocess.PIPE, text=True) as listening:
        assert listening.stdout is not None
        wait_until(
            lambda: broker.call(lambda: broker.exchange.sessions.subscription_count) > before
        )
        page.get_by_text("Publish a message").click()
        page.get_by_label("Name", exact=True).fill("sensors/page")
        page.get_by_label("Payload", exact=True).fill("from the page")
        page.get_by_label("Headers").fill("unit: celsius")
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
    expect(dialog).to_contain_text("celsius")
    dialog.get_by_role("button", name="Hex", exact=True).click()
    expect(dialog).to_contain_text("66 72 6f 6d 20 74 68 65")
    picture(page, "message")


@pytest.mark.parametrize(
    "payload",
    [
        {"payload": {"price": 1.5, "is_paid": True, "note": None, "tags": ['it\'s "ü"', "\\n"]}},
        {"payload": 'it\'s "text"\n$HOME'},
        {"payload_base64": "AP8="},
    ],
    ids=["json", "text", "bytes"],
)
def test_a_message_is_copied_as_programs_that_publish_it_again(
    browser: Browser, broker: Hosted, payload: dict[str, Any]
) -> None:
    topic = f"copied-{'-'.join(payload)}-{type(payload.get('payload')).__name__}"
    name = f"{topic}/it's"
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    with watched(context) as page, Asking(broker.ports["http"]) as asking:
        assert asking.ask("PUT", f"/v1/topics/{topic}", {}).status == 201
        asking.ask("POST", "/v1/bindings", {"filter": f"{topic}/#", "topic": topic})
        message = {"name": name, "headers": [["k", "1"], ["k", "it's 2"]], "retain": True}
        path = f"/v1/topics/{topic}/records"
        assert asking.ask("POST", path, message | payload).status == 200
        go(page, broker, f"messages/{topic}?from=earliest")
        page.get_by_role("button", name="Open").first.click()
        run_shell(copied(page, "curl"))
        program = copied(page, "Python")
        subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
        run_shell(copied(page, "mosquitto_pub"))
        records = asking.ask("GET", f"{path}?from=earliest").json["records"]
    first, *again = [{key: one.get(key) for key in COPIED} for one in records]
    assert again[:2] == [first, first]
    (over_mqtt,) = again[2:]
    if first["kind"] == "json":  # MQTT knows only text
        assert json.loads(over_mqtt["payload"]) == first["payload"]
    else:
        assert over_mqtt["payload"] == first["payload"]
    for key in ("name", "payload_base64", "headers", "retain"):
        assert over_mqtt[key] == first[key]


def copied(page: Page, what: str) -> str:
    """What a button of the open message puts onto the clipboard."""
    page.get_by_role("button", name=f"Copy as {what}").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    return str(page.evaluate("navigator.clipboard.readText()"))


def test_a_copied_program_asks_for_the_password_of_the_user_that_is_signed_in(
    browser: Browser, tmp_path: Path
) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    user, password = login("acme")[0], login("acme")[1].decode()
    with Hosted(tmp_path) as broker, watched(context) as page, Asker(broker, "acme") as asker:
        add_tenants(broker)
        asker.get("PUT", "/v1/topics/orders", {})
        asker.get("POST", "/v1/topics/orders/records", {"payload": "1"})
        go(page, broker, "messages/orders?from=earliest")
        page.get_by_label("User").fill(user)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Open").first.click()
        texts = [copied(page, what) for what in ("curl", "Python", "mosquitto_pub")]
        assert all(password not in text for text in texts)
        # Without a terminal Python asks for the password on standard input.
        subprocess.run(
            [sys.executable, "-c", texts[1]],
            input=f"{password}\n",
            text=True,
            check=True,
            timeout=30,
            start_new_session=True,
        )
        run_shell(texts[0].replace("-u 'acme/ann'", f"-u 'acme/ann:{password}'"))
        assert len(asker.get("GET", "/v1/topics/orders/records?from=earliest")["records"]) == 3
        assert """-u 'acme/ann' -P "$PASSWORD" """ in texts[2]


def run_shell(command: str) -> None:
    subprocess.run(["bash", "-c", command], check=True, timeout=30)


def test_a_paused_page_shows_nothing_new_and_continues_where_it_was(
    page: Page, broker: Hosted
) -> None:
    def publish(text: str) -> None:
        asking.ask("POST", "/v1/topics/alarms/records", {"payload": text})

    def row(text: str, of: Page = page) -> Locator:
        return of.get_by_role("row").filter(has_text=text)

    with Asking(broker.ports["http"]) as asking, page.context.new_page() as other:
        for one in (page, other):
            go(one, broker, "messages/alarms")
            one.get_by_role("button", name="Follow live").click()
            expect(one.get_by_text("Following.")).to_be_visible()
        publish("before the pause")
        expect(row("before the pause")).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_text("Paused.")).to_be_visible()
        publish("in the pause")
        expect(row("in the pause", other)).to_be_visible()
        assert row("in the pause").count() == 0
        expect(row("before the pause")).to_be_visible()
        page.get_by_role("button", name="Continue").click()
        for text in ("before the pause", "in the pause"):
            expect(row(text)).to_have_count(1)
        publish("after the pause")
        expect(row("after the pause")).to_be_visible()


def test_what_is_wrong_with_an_expression_is_said_below_it(page: Page, broker: Hosted) -> None:
    go(page, broker, "messages/sensors?from=earliest")
    where = page.get_by_label("Where")
    where.fill("payload.celsius >")
    page.get_by_role("button", name="Browse").click()
    below = page.locator(".field").filter(has=where).get_by_role("alert")
    expect(below).to_be_visible()
    expect(where).to_have_attribute("aria-invalid", "true")
    picture(page, "expression")
    where.fill("payload.celsius > 52")
    page.get_by_role("button", name="Browse").click()
    expect(below).to_be_hidden()
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
    expect(page.get_by_text("kept 12 h", exact=True)).to_be_visible()
    page.get_by_label("Store names that match").fill("shop/+/order")
    page.get_by_role("button", name="Bind").click()
    row = page.get_by_role("row").filter(has_text="shop/+/order")
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(row).to_be_hidden()


def test_the_overview_moves_and_has_latencies_and_what_retention_removes(
    page: Page, broker: Hosted
) -> None:
    go(page, broker, "overview")
    expect(page.get_by_text("No reader is behind.")).to_be_hidden()
    tile = page.locator(".tile").first
    expect(tile).to_contain_text("records in")
    expect(page.locator(".tile").filter(has_text="Disk used")).to_contain_text("retention removes")
    with Asking(broker.ports["http"]) as asking:
        asking.ask("POST", "/v1/topics/orders/records", [{"payload": "x"}] * 500)
    memory = page.locator(".chart").filter(has_text="Memory of the process").locator("text").nth(2)
    expect(memory).to_have_text(
        re.compile(r"^([1-46]|8|10|[2-468]0|[1-4]00|600|800)(\.0)? [MG]iB$")
    )
    line = page.locator(".chart").first.locator(".legend")
    expect(line).not_to_contain_text("stored 0/s")
    latency = page.locator(".tile").filter(has_text="Publish to ack")
    expect(latency.locator("strong")).not_to_have_text("0.00 ms")


def test_a_client_is_shown_disconnected_and_its_session_ended(page: Page, broker: Hosted) -> None:
    with Wire(broker.port, "visitor") as wire:
        wire.connect()
        go(page, broker, "clients")
        row = page.get_by_role("row").filter(has_text="visitor")
        expect(row).to_contain_text("connected")
        row.get_by_role("button", name="Disconnect").click()
        page.get_by_role("dialog").get_by_role("button", name="Disconnect").click()
        assert wire.is_closed()
        expect(row).to_be_hidden()
    with Wire(broker.port, "leaver", MQTT_5) as wire:
        wire.connect(properties=kept())
        wire.subscribe("leaving/#", qos=1)
        wire.disconnect()
    go(page, broker, "clients")
    row = page.get_by_role("row").filter(has_text="leaver")
    expect(row).to_contain_text("away")
    row.get_by_role("button", name="Show").click()
    expect(page.get_by_role("dialog")).to_contain_text("leaving/#")
    page.keyboard.press("Escape")
    row.get_by_role("button", name="End session").click()
    expect(page.get_by_role("dialog")).to_contain_text("End the session of leaver?")
    page.get_by_role("dialog").get_by_role("button", name="End session").click()
    expect(row).to_be_hidden()
    assert "leaver" not in broker.call(lambda: broker.exchange.store.stored)


def test_a_bridge_is_shown_with_why_it_is_not_connected(page: Page, tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(
        '[[bridges]]\nname = "plant"\naddress = "mqtt://127.0.0.1:1"\n'
        '[[bridges.topics]]\nfilter = "temp/#"\ndirection = "out"\n'
    )
    with Hosted(tmp_path / "data", config=config) as broker:
        go(page, broker, "clients")
        row = page.get_by_role("region", name="Bridges").get_by_role("row").filter(has_text="plant")
        expect(row).to_contain_text("mqtt://127.0.0.1:1")
        expect(row).to_contain_text("cannot connect")


def test_dead_letters_are_counted_and_put_back(page: Page, broker: Hosted) -> None:
    go(page, broker, "readers")
    row = page.get_by_role("row").filter(has=page.get_by_role("button", name="Redrive"))
    expect(row).to_contain_text("packers")
    row.get_by_role("button", name="Redrive").click()
    dialog = page.get_by_role("dialog")
    where = page.get_by_label("Only dead letters with")
    where.fill("offset >")
    dialog.get_by_role("button", name="Count them").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    where.fill("")
    dialog.get_by_role("button", name="Count them").click()
    expect(dialog).to_contain_text("1 dead letter would be put back.")
    dialog.get_by_role("button", name="Redrive", exact=True).click()
    expect(page.get_by_text("1 dead letter of group packers was put back")).to_be_visible()


def test_a_trace_shows_live_where_a_message_is_and_who_has_passed_a_record(
    page: Page, broker: Hosted
) -> None:
    go(page, broker, "trace")
    page.get_by_label("Name, client or record").fill("live/#")
    page.get_by_role("button", name="Trace", exact=True).click()
    expect(page.get_by_text("Follows until")).to_be_visible()
    with Wire(broker.port, "gauge") as device, Wire(broker.port, "screen") as reader:
        device.connect()
        reader.connect()
        reader.subscribe("live/#", qos=1)
        for number in range(3):
            device.publish(f"live/{number}", b"1", 1)
            reader.receive()
    region = page.get_by_role("region", name="Events")
    for what in ("received", "stored", "sent", "acknowledged"):
        expect(region.get_by_text(what, exact=True)).to_have_count(3)
    picture(page, "trace")
    page.get_by_role("link", name=re.compile("^default@")).first.click()
    expect(page.get_by_role("heading", name="Which readers have passed it")).to_be_visible()
    assert broker.exchange.engine.watch is None, "the trace ends with its page"


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
        for name in ("Access", "Trace", "Clients"):
            assert page.get_by_role("link", name=name).count() == 0
        expect(page.get_by_role("heading", name="Dropped and refused")).to_be_visible()
        assert page.get_by_role("heading", name="Slowest readers").count() == 0
        go(page, broker, "access")
        expect(
            page.get_by_text("worker may not see this page: it needs the role admin.")
        ).to_be_visible()
        assert page.get_by_role("button", name="Add a user").count() == 0
        page.get_by_role("button", name="Sign out").click()
        expect(page.locator("h1")).to_have_text("Sign in")
        page.get_by_label("User").fill("boss")
        page.get_by_label("Password").fill("first")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="Access").click()
        expect(page.get_by_role("cell", name="worker", exact=True)).to_be_visible()
        page.get_by_label("Role", exact=True).fill("sensor")
        page.get_by_label("Rules of the role").fill("allow publish sensors/%u/#")
        page.get_by_role("button", name="Add a role").click()
        roles = page.get_by_role("region", name="Roles")
        expect(roles.get_by_role("cell", name="allow publish sensors/%u/#")).to_be_visible()
        row = page.get_by_role("row").filter(
            has=page.get_by_role("cell", name="worker", exact=True)
        )
        row.get_by_role("button", name="Roles").click()
        page.get_by_role("dialog").get_by_label("Roles").fill("sensor")
        page.get_by_role("button", name="Save").click()
        expect(row).to_contain_text("sensor")
        card = page.locator("section").filter(has_text="May somebody do this?")
        card.get_by_label("User").fill("worker")
        card.get_by_label("Name").fill("hr/pay")
        card.get_by_role("button", name="Check").click()
        expect(card).to_contain_text("denied")
        page.evaluate("scrollTo(0, 0)")
        picture(page, "access")


def test_an_operator_adds_and_removes_tenants(page: Page, tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker:
        access = broker.exchange.engine.access
        broker.run(lambda server: access.add_user("chief", b"third", ["operator"]))
        go(page, broker, "access")
        page.get_by_label("User").fill("chief")
        page.get_by_label("Password").fill("third")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_label("Tenant", exact=True).fill("acme")
        page.get_by_role("button", name="Add a tenant").click()
        row = page.get_by_role("row").filter(has=page.get_by_role("cell", name="acme", exact=True))
        row.get_by_role("button", name="Remove").click()
        page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        expect(row).to_be_hidden()


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
