"""`/`: does somebody with a browser find out what this is, and nobody else notice?"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from penstock import __version__
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.http.asking import Asking


class Page(HTMLParser):
    """The tags, the links and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_says_the_version_and_all_its_links_work(client: Asking) -> None:
    answer = client.ask("GET", "/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    page = Page(answer.body.decode())
    assert f"Penstock {__version__}" in page.text
    assert {"/metrics", "/healthz", "/readyz", "/v1/openapi.json"} <= set(page.links)
    for link in page.links:
        assert client.ask("GET", link).status == 200, link


def test_the_page_runs_and_loads_nothing(client: Asking) -> None:
    answer = client.ask("GET", "/")
    page = Page(answer.body.decode())
    assert not page.tags & {"script", "style", "link", "img", "iframe", "form"}
    assert not {name for name in page.attributes if name.startswith("on") or name == "style"}
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_head_has_the_same_headers_and_no_body(client: Asking) -> None:
    whole, head = client.ask("GET", "/"), client.ask("HEAD", "/")
    assert (head.status, head.body) == (200, b"")
    dated = {"date"}
    assert {k: v for k, v in head.headers.items() if k not in dated} == {
        k: v for k, v in whole.headers.items() if k not in dated
    }


def test_programs_get_json_as_before(client: Asking) -> None:
    assert client.ask("GET", "/nothing", Accept="text/html").detail
    assert client.ask("POST", "/").detail
    assert client.ask("GET", "/topics", Accept="text/html").json["status"] == "success"
    assert "/" not in client.ask("GET", "/v1/openapi.json").json["paths"]


def test_once_there_are_users_the_page_wants_a_login(tmp_path: Path) -> None:
    add_users(tmp_path, alice="secret")
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        answer = client.ask("GET", "/")
        assert answer.status == 401 and "Basic" in answer.headers["www-authenticate"]
        assert __version__ not in answer.body.decode()
