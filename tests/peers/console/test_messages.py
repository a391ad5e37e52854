"""The page of messages in a browser: are the newest shown first, also of several partitions?"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from penstock.log.files.store import EmbeddedStore
from tests.doors.hosted import Hosted
from tests.http.asking import Asking
from tests.peers.console.console_house import go

PARTITIONS = 3


def store(asking: Asking, topic: str, count: int, *, names: int = 1) -> None:
    records = [
        {"name": f"{topic}/{number % names}", "payload": {"n": number}} for number in range(count)
    ]
    assert asking.ask("POST", f"/v1/topics/{topic}/records", records).status == 200


def numbers(page: Page) -> list[int]:
    """What the shown messages say, from the top."""
    payloads = page.locator("td[data-title=Payload]").all_inner_texts()
    return [int(text.removeprefix('{"n":').removesuffix("}")) for text in payloads]


def test_the_newest_messages_are_shown_first_and_older_ones_on_demand(
    page: Page, tmp_path: Path
) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as asking:
        asking.ask("PUT", "/v1/topics/orders", {})
        store(asking, "orders", 130, names=65)
        go(page, broker, "messages/orders")
        expect(page.get_by_text("50 messages, the newest first")).to_be_visible()
        assert numbers(page) == list(range(129, 79, -1))
        page.get_by_role("button", name="Older messages").click()
        expect(page.get_by_role("cell", name="79", exact=True)).to_be_visible()
        assert numbers(page) == list(range(79, 29, -1))
        page.get_by_role("button", name="Older messages").click()
        expect(page.get_by_text("30 messages, the newest first")).to_be_visible()
        expect(page.get_by_role("button", name="Older messages")).to_be_hidden()
        page.get_by_label("Names").fill("orders/7")
        page.get_by_role("button", name="Browse").click()
        expect(page.get_by_text("2 messages, the newest first")).to_be_visible()
        assert numbers(page) == [72, 7]


def test_a_message_that_is_published_in_the_page_appears_at_the_top(
    page: Page, tmp_path: Path
) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as asking:
        asking.ask("PUT", "/v1/topics/orders", {})
        store(asking, "orders", 2)
        go(page, broker, "messages/orders")
        page.get_by_text("Publish a message").click()
        page.get_by_label("Payload", exact=True).fill('{"n":2}')
        page.get_by_role("button", name="Publish", exact=True).click()
        expect(page.get_by_text("3 messages, the newest first")).to_be_visible()
        assert numbers(page) == [2, 1, 0]


def test_messages_of_several_partitions_are_shown_followed_and_published(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only topics in Kafka have several partitions; the files of this broker act as if."""
    monkeypatch.setattr(EmbeddedStore, "partitions_max", PARTITIONS)
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as asking:
        made = asking.ask("PUT", "/v1/topics/orders", {"partitions": PARTITIONS})
        assert made.status == 201, made
        store(asking, "orders", 120, names=30)
        go(page, broker, "messages/orders")
        expect(page.get_by_text("50 messages, the newest first")).to_be_visible()
        first = set(numbers(page))
        newest = page.locator("td[data-title=Payload]").first
        shown = newest.inner_text()
        page.get_by_role("button", name="Older messages").click()
        expect(newest).not_to_have_text(shown)
        second = set(numbers(page))
        page.get_by_role("button", name="Older messages").click()
        expect(page.get_by_text("20 messages, the newest first")).to_be_visible()
        third = set(numbers(page))
        assert first | second | third == set(range(120)), "each is on one of the pages"
        page.get_by_label("From").fill("earliest")
        page.get_by_role("button", name="Browse").click()
        expect(page.get_by_text("50 messages; the topic ends at")).to_be_visible()
        page.get_by_role("button", name="Next page").click()
        page.get_by_role("button", name="Open").first.click()
        expect(page.get_by_role("dialog")).to_contain_text("Partition")
        page.get_by_role("link", name="Who has received it?").click()
        expect(page.get_by_role("heading", name="Which readers have passed it")).to_be_visible()
        page.get_by_role("link", name="Show the payload").click()
        expect(page.get_by_role("button", name="Open").first).to_be_visible()
        page.get_by_label("Names").fill("")
        page.get_by_role("button", name="Follow live").click()
        expect(page.get_by_text("Following.")).to_be_visible()
        page.get_by_text("Publish a message").click()
        for number in (1001, 1002, 1003):
            page.get_by_label("Name", exact=True).fill(f"orders/{number}")
            page.get_by_label("Payload", exact=True).fill(f'{{"n":{number}}}')
            page.get_by_role("button", name="Publish", exact=True).click()
            expect(page.get_by_role("row").filter(has_text=f"orders/{number}")).to_be_visible()
        go(page, broker, "topics/orders")
        expect(page.get_by_text(f"in {PARTITIONS} partitions")).to_be_visible()
        expect(page.get_by_role("cell", name="orders/1003")).to_be_visible()


def test_the_messages_come_back_by_themselves_when_the_broker_was_away(
    page: Page, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        http = f"127.0.0.1:{free.getsockname()[1]}"
    with Hosted(tmp_path, http__listen=http) as broker, Asking(broker.ports["http"]) as asking:
        asking.ask("PUT", "/v1/topics/orders", {})
        store(asking, "orders", 2)
        go(page, broker, "messages/orders")
        expect(page.get_by_text("2 messages, the newest first")).to_be_visible()
    page.get_by_label("Names").fill("orders/#")
    page.get_by_role("button", name="Browse").click()
    expect(page.get_by_text("The broker does not answer.")).to_be_visible()
    with Hosted(tmp_path, http__listen=http) as broker, Asking(broker.ports["http"]) as asking:
        store(asking, "orders", 1)
        expect(page.get_by_text("3 messages, the newest first")).to_be_visible()
        expect(page.get_by_text("The broker does not answer.")).to_be_hidden()
