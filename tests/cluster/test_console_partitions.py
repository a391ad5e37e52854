"""Does the console show a topic of several partitions, in a real browser, as one topic?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.cluster.test_kafka_broker import KafkaBrokerWorld
from tests.http.asking import Asking
from tests.kafka_server import KafkaServer
from tests.peers.console.browsing import opened, picture, watched

COUNT = 120  # more than two pages


@pytest.fixture(scope="module")
def world(
    kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaBrokerWorld]:
    made = KafkaBrokerWorld(kafka, tmp_path_factory.mktemp("console") / "data", partitions=3)
    with made.served, Asking(made.served.http_port) as asking:
        assert asking.ask("PUT", "/v1/topics/orders", {}).status == 201
        messages = [{"name": f"orders/{at % 9}", "payload": {"at": at}} for at in range(COUNT)]
        assert asking.ask("POST", "/v1/topics/orders/records", messages).status == 200
        asking.ask("PUT", "/v1/topics/orders/consumers/billing", {"from": "earliest"})
        yield made


@pytest.fixture
def page(world: KafkaBrokerWorld) -> Iterator[Page]:
    with opened() as browser, watched(browser.new_context()) as page:
        yield page


def test_every_message_of_all_partitions_is_paged_through_once(
    page: Page, world: KafkaBrokerWorld
) -> None:
    page.goto(f"{world.url}/#/messages/orders?from=earliest")
    seen: list[int] = []
    payloads = page.locator("td[data-title=Payload] code")
    while True:
        expect(page.get_by_text("(partition:offset)")).to_be_visible()
        texts = payloads.all_inner_texts()
        seen += [json.loads(text)["at"] for text in texts]
        more = page.get_by_role("button", name="Next page")
        if not more.is_visible():
            break
        more.click()
        expect(payloads.first).not_to_have_text(texts[0])
    assert sorted(seen) == list(range(COUNT))
    page.get_by_role("button", name="Open").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("Partition")


def test_a_published_message_says_its_partition_and_appears_live(
    page: Page, world: KafkaBrokerWorld
) -> None:
    page.goto(f"{world.url}/#/messages/orders")
    page.get_by_role("button", name="Follow live").click()
    expect(page.get_by_text("Following.")).to_be_visible()
    page.get_by_text("Publish a message").click()
    page.get_by_label("Name", exact=True).fill("orders/4")
    page.get_by_label("Payload", exact=True).fill("from the page")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.locator("#status")).to_contain_text(":")
    expect(page.get_by_role("row").filter(has_text="from the page")).to_have_count(1)


def test_the_page_of_the_topic_has_its_newest_messages_readers_and_settings(
    page: Page, world: KafkaBrokerWorld, tmp_path: Path
) -> None:
    page.goto(f"{world.url}/#/topics/orders")
    expect(page.get_by_text("in 3 partitions")).to_be_visible()
    expect(page.get_by_role("region", name="Newest messages").get_by_role("row")).to_have_count(6)
    expect(page.get_by_role("row").filter(has_text="billing")).to_contain_text("0:0 1:0 2:0")
    page.get_by_label("Keep records for").fill("12h")
    page.get_by_role("button", name="Save the settings").click()
    expect(page.get_by_text("kept 12 h", exact=True)).to_be_visible()
    picture(page, "partitions")
    page.goto(f"{world.url}/#/topics")
    expect(page.get_by_role("row").filter(has_text="orders")).to_contain_text("3 partitions")
