"""What a person meets in the console: wrong addresses, questions, moving a reader, a restart."""

from __future__ import annotations

import socket
from pathlib import Path

from playwright.sync_api import Page, Request, expect

from tests.doors.hosted import Hosted
from tests.http.access.test_http_access import basic
from tests.http.asking import Asking
from tests.peers.console.console_house import go


def test_a_topic_that_is_not_there_is_said_and_can_be_created(page: Page, tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as asking:
        asking.ask("PUT", "/v1/topics/sensors", {})
        go(page, broker, "messages/orders")
        expect(page.get_by_text("There is no topic orders, or you may not see it.")).to_be_visible()
        assert page.get_by_label("Topic").count() == 0, "messages of another topic are not shown"
        go(page, broker, "topics/orders")
        expect(page.get_by_text("There is no topic orders, or you may not see it.")).to_be_visible()
        expect(page.get_by_role("button", name="Delete the topic")).to_be_hidden()
        page.get_by_role("button", name="Create it").click()
        page.get_by_role("dialog").get_by_role("button", name="Create").click()
        expect(page.get_by_role("heading", name="Newest messages")).to_be_visible()
        asking.ask("DELETE", "/v1/topics/orders")
        expect(page.get_by_text("There is no topic orders, or you may not see it.")).to_be_visible()


def test_a_search_is_in_the_address_and_survives_a_reload(page: Page, tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as asking:
        for topic in ("alarms", "orders"):
            asking.ask("PUT", f"/v1/topics/{topic}", {})
        records = [{"name": f"orders/{n}", "payload": {"n": n}} for n in range(9)]
        asking.ask("POST", "/v1/topics/orders/records", records)
        go(page, broker, "messages")
        page.get_by_label("Topic").select_option("orders")
        page.get_by_label("From").fill("2")
        page.get_by_label("Where").fill("payload.n > 6")
        page.get_by_role("button", name="Browse").click()
        expect(page.get_by_text("2 messages;")).to_be_visible()
        page.reload()
        expect(page.get_by_text("2 messages;")).to_be_visible()
        expect(page.get_by_label("Topic")).to_have_value("orders")
        expect(page.get_by_label("Where")).to_have_value("payload.n > 6")
        expect(page).to_have_title("orders – Messages – Penstock")


def test_a_consumer_is_moved_and_a_wrong_position_is_said_in_the_dialog(
    page: Page, tmp_path: Path
) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as asking:
        asking.ask("PUT", "/v1/topics/orders", {})
        asking.ask("POST", "/v1/topics/orders/records", [{"payload": "x"}] * 4)
        asking.ask("PUT", "/v1/topics/orders/consumers/billing", {"from": "latest"})
        go(page, broker, "readers")
        row = page.get_by_role("row").filter(has_text="billing")
        expect(row).to_contain_text("up to date")
        row.get_by_role("button", name="Move to").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Continue at").fill("yesterday")
        dialog.get_by_role("button", name="Move", exact=True).click()
        expect(dialog.get_by_role("alert")).to_contain_text("'yesterday' is not a position")
        dialog.get_by_label("Continue at").fill("1")
        dialog.get_by_role("button", name="Move", exact=True).click()
        expect(page.get_by_text("Consumer billing continues at offset 1.")).to_be_visible()
        expect(row).to_contain_text("3")


def test_few_of_the_topics_without_readers_are_asked_about_at_a_time(
    page: Page, tmp_path: Path
) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as asking:
        for number in range(60):
            asking.ask("PUT", f"/v1/topics/t{number:02}", {})
        asking.ask("PUT", "/v1/topics/t07/consumers/billing", {})
        rounds: list[int] = []

        def count(request: Request) -> None:
            path = request.url.partition("/v1/")[2]
            if path == "topics":
                rounds.append(0)
            elif path.endswith("/consumers"):
                rounds[-1] += 1

        page.on("request", count)
        page.clock.install()
        go(page, broker, "readers")
        expect(page.get_by_role("row").filter(has_text="billing")).to_be_visible()
        asking.ask("PUT", "/v1/topics/t07/consumers/charts", {})
        asking.ask("PUT", "/v1/topics/t59/consumers/late", {})
        for name in ("charts", "late"):
            while not page.get_by_role("row").filter(has_text=name).count():
                page.clock.run_for(1_000)
        assert rounds[0] >= 60 and max(rounds[1:]) <= 22
        assert len(rounds) <= 6, "each topic has its turn"


def test_the_readers_of_topics_that_may_be_read_are_shown_beside_one_that_may_not(
    page: Page, tmp_path: Path
) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as asking:
        for topic in ("orders", "stock"):
            asking.ask("PUT", f"/v1/topics/{topic}", {})
            asking.ask("PUT", f"/v1/topics/{topic}/consumers/of-{topic}", {})
        rules = ["allow read topic:orders", "allow manage topic:stock"]
        asking.ask("PUT", "/v1/roles/clerk", {"rules": rules})
        asking.ask("PUT", "/v1/users/ada", {"password": "secret", "roles": ["admin"]})
        bob = {"password": "secret", "roles": ["clerk"]}
        asking.ask("PUT", "/v1/users/bob", bob, Authorization=basic("ada", "secret"))
        go(page, broker, "overview")
        page.get_by_label("User").fill("bob")
        page.get_by_label("Password").fill("secret")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="Consumers, groups").click()
        expect(page.get_by_role("row").filter(has_text="of-orders")).to_be_visible()
        assert page.locator("#status.bad").count() == 0


def test_a_button_says_what_it_does_and_escape_changes_nothing(page: Page, tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as asking:
        asking.ask("PUT", "/v1/topics/orders", {})
        asking.ask("POST", "/v1/topics/orders/records", {"payload": "x"})
        go(page, broker, "topics/orders")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("dialog")).to_contain_text("Message 0")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Delete the topic").click()
        expect(page.get_by_role("dialog")).to_contain_text("This cannot be undone.")
        page.keyboard.press("Escape")
        assert asking.ask("GET", "/v1/topics/orders").status == 200
        page.get_by_role("button", name="Delete the topic").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete the topic").click()
        expect(page.locator("h1")).to_have_text("Topics")
        assert asking.ask("GET", "/v1/topics/orders").status == 404


def test_an_error_of_one_page_is_not_shown_on_the_next(page: Page, tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as asking:
        asking.ask("PUT", "/v1/topics/orders", {})
        asking.ask("PUT", "/v1/topics/orders/groups/packers", {})
        go(page, broker, "readers")
        row = page.get_by_role("row").filter(has_text="packers")
        row.get_by_role("button", name="Remove").click()
        asking.ask("DELETE", "/v1/topics/orders")
        page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        expect(page.locator("#status")).to_contain_text("orders")
        page.get_by_role("link", name="Overview").click()
        expect(page.locator("h1")).to_have_text("Overview")
        expect(page.locator("#status")).to_be_empty()


def test_a_name_that_looks_like_a_record_of_no_topic_is_explained(
    page: Page, tmp_path: Path
) -> None:
    with Hosted(tmp_path) as broker:
        go(page, broker, "trace")
        page.get_by_label("Name, client or record").fill("nosuch@12")
        page.get_by_role("button", name="Trace", exact=True).click()
        expect(page.get_by_text("There is no topic nosuch")).to_be_visible()
        all_traces = page.get_by_role("region", name="Traces that are on")
        expect(all_traces.get_by_role("row").filter(has_text="nosuch@12")).to_be_visible()


def test_a_page_that_is_opened_while_the_broker_is_away_comes_by_itself(
    page: Page, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        http = f"127.0.0.1:{free.getsockname()[1]}"
    with Hosted(tmp_path, http__listen=http) as broker, Asking(broker.ports["http"]) as asking:
        asking.ask("PUT", "/v1/topics/orders", {})
        go(page, broker, "overview")
        expect(page.locator("h1")).to_have_text("Overview")
    page.get_by_role("link", name="Messages").click()
    expect(page.get_by_text("The broker does not answer.")).to_be_visible()
    with Hosted(tmp_path, http__listen=http):
        expect(page.get_by_label("Topic")).to_have_value("orders")
        expect(page.get_by_text("The broker does not answer.")).to_be_hidden()


def test_the_first_user_is_an_admin_who_signs_in_and_later_ones_are_not(
    page: Page, tmp_path: Path
) -> None:
    with Hosted(tmp_path) as broker:
        go(page, broker, "access")
        expect(page.get_by_text("From the first user on, everybody has to log in.")).to_be_visible()
        adding = page.locator("form").filter(has=page.get_by_role("button", name="Add a user"))
        adding.get_by_label("User").fill("ada")
        adding.get_by_label("Password").fill("secret")
        adding.get_by_role("button", name="Add a user").click()
        expect(page.locator("h1")).to_have_text("Sign in")
        page.get_by_label("User").fill("ada")
        page.get_by_label("Password").fill("secret")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("row", name="ada admin")).to_be_visible()
        expect(page.get_by_text("From the first user on, everybody has to log in.")).to_be_hidden()
        expect(adding.get_by_label("Roles")).to_have_value("client")
