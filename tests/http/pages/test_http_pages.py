"""Can a web page of another site use somebody's browser to reach this broker, or to change it?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.http.asking import Answer, Asking

UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
EVIL = "evil.example:8090"


def ask(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    """One request on a connection of its own, with exactly these headers."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    if body:
        named["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{key}: {value}" for key, value in named.items())]
    with Asking(port) as client:
        client.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        return client.answer(is_head=method == "HEAD")


@pytest.fixture
def port(broker: Hosted) -> int:
    return broker.ports["http"]


@pytest.fixture
def queue(client: Asking, name: str) -> Iterator[str]:
    """The path that takes the next message out of a queue; it holds one."""
    client.ask("PUT", f"/v1/topics/{name}")
    producer = client.ask("POST", "/producer/register", {"topic": name}).json["producer_id"]
    consumer = client.ask("POST", "/consumer/register", {"topic": name}).json["consumer_id"]
    told = {"topic": name, "producer_id": producer, "message": "once"}
    assert client.ask("POST", "/producer/produce", told).status == 200
    fields = f"topic={name}&consumer_id={consumer}"
    yield f"/consumer/consume?{fields}"
    assert client.ask("GET", f"/size?{fields}").json["size"] in (0, 1)


def waiting(client: Asking, queue: str) -> int:
    return int(client.ask("GET", queue.replace("/consumer/consume", "/size")).json["size"])


# A name that was pointed at this machine (DNS rebinding)


@pytest.mark.parametrize(
    "path",
    ["/mqtt", "/v1/topics", "/topics", "/size", "/metrics", "/healthz", "/readyz", "/", "/nothing"],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
def test_a_rebound_name_is_refused_on_every_path(port: int, method: str, path: str) -> None:
    assert ask(port, method, path, Host=EVIL).status == 421
    assert ask(port, method, path, Host=EVIL, Origin=f"http://{EVIL}").status == 421


@pytest.mark.parametrize("path", ["/mqtt", "/v1/topics/default/stream", "/healthz"])
def test_a_rebound_name_is_refused_on_every_upgrade(port: int, path: str) -> None:
    asked = UPGRADE | {"Sec-WebSocket-Protocol": "mqtt"}
    refused = ask(port, "GET", path, Host=EVIL, Origin=f"http://{EVIL}", **asked)
    assert refused.status == 421 and "'evil.example'" in refused.detail


def test_mqtt_over_websocket_stays_open_to_programs_and_own_pages(port: int) -> None:
    asked = UPGRADE | {"Sec-WebSocket-Protocol": "mqtt"}
    for headers in ({"Host": "127.0.0.1"}, {"Host": "localhost", "Origin": "http://localhost"}):
        assert ask(port, "GET", "/mqtt", **headers, **asked).status == 101


def test_a_listed_name_and_any_name_behind_a_login_are_served(tmp_path: Path) -> None:
    asked = UPGRADE | {"Sec-WebSocket-Protocol": "mqtt"}
    with Hosted(tmp_path / "listed", http__origins="https://dash.example") as broker:
        port = broker.ports["http"]
        assert ask(port, "GET", "/mqtt", Host="dash.example", **asked).status == 101
        assert ask(port, "GET", "/mqtt", Host=EVIL, **asked).status == 421
    add_users(tmp_path / "guarded", alice="wonder")
    with Hosted(tmp_path / "guarded") as broker:
        port = broker.ports["http"]
        assert ask(port, "GET", "/healthz", Host="b.example").status == 200
        assert ask(port, "GET", "/mqtt", Host="b.example", **asked).status == 101


@pytest.mark.parametrize(
    "host",
    ["[", "[::1", "]", "a b", "[v1.x]:1", "localhost:x", "local\xb2host", "//", "a@b", "a/b"],
)
def test_a_host_that_is_none_is_told_so(port: int, host: str) -> None:
    for path in ("/healthz", "/v1/topics", "/mqtt"):
        answer = ask(port, "GET", path, Host=host)
        assert answer.status == 400 and "Host" in answer.detail


# Requests that a page of another site makes a browser send


@pytest.mark.parametrize("site", ["cross-site", "same-site", "cross-site, none", "nonsense"])
def test_an_image_on_another_page_takes_no_message(
    port: int, client: Asking, queue: str, site: str
) -> None:
    fetch = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    answer = ask(port, "GET", queue, Host="localhost", **fetch)
    assert answer.status == 403
    assert answer.json["status"] == "failure" and "another site" in answer.json["message"]
    assert waiting(client, queue) == 1


def test_a_link_on_another_page_takes_no_message(port: int, client: Asking, queue: str) -> None:
    fetch = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert ask(port, "GET", queue, Host="localhost", **fetch).status == 403
    assert waiting(client, queue) == 1


def test_head_takes_no_message(port: int, client: Asking, queue: str) -> None:
    answer = ask(port, "HEAD", queue, Host="localhost")
    assert answer.status == 405 and answer.headers["allow"] == "GET, OPTIONS"
    assert ask(port, "OPTIONS", queue, Host="localhost").headers["allow"] == "GET, OPTIONS"
    assert waiting(client, queue) == 1


@pytest.mark.parametrize(
    "fetch", [{}, {"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin"}]
)
def test_programs_own_pages_and_the_address_bar_take_messages(
    port: int, client: Asking, queue: str, fetch: dict[str, str]
) -> None:
    assert ask(port, "GET", queue, Host="localhost", **fetch).json["message"] == "once"
    assert waiting(client, queue) == 0


def test_whatever_changes_something_refuses_other_sites(
    port: int, client: Asking, name: str
) -> None:
    client.ask("PUT", f"/v1/topics/{name}")
    fetch = {"Host": "localhost", "Sec-Fetch-Site": "cross-site"}
    body = b'{"payload": "x"}'
    topic = f"/v1/topics/{name}"
    for method, path in (
        ("POST", f"{topic}/records"),
        ("POST", f"{topic}/groups/g/fetch"),
        ("PUT", f"{topic}-2"),
        ("DELETE", topic),
        ("PATCH", topic),
    ):
        answer = ask(port, method, path, body, **fetch)
        assert answer.status == 403 and "another site" in answer.detail
    assert ask(port, "POST", "/topics", b'{"name": "x"}', **fetch).json["status"] == "failure"
    assert client.ask("GET", topic).json["end_offset"] == 0
    assert client.ask("GET", f"{topic}-2").status == 404


def test_other_sites_may_link_to_what_changes_nothing(port: int) -> None:
    fetch = {"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    for path in ("/healthz", "/metrics", "/v1/topics", "/v1/openapi.json"):
        assert ask(port, "GET", path, **fetch).status == 200


def test_a_listed_page_may_change_things_and_its_images_may_not(tmp_path: Path) -> None:
    page = "https://dash.example"
    fetch = {"Host": "localhost", "Sec-Fetch-Site": "cross-site"}
    with Hosted(tmp_path, http__origins=page) as broker:
        port = broker.ports["http"]
        assert ask(port, "PUT", "/v1/topics/t", Origin=page, **fetch).status == 201
        assert ask(port, "DELETE", "/v1/topics/t", **fetch).status == 403


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT"])
def test_only_get_upgrades(port: int, client: Asking, name: str, method: str) -> None:
    client.ask("PUT", f"/v1/topics/{name}")
    asked = UPGRADE | {"Sec-WebSocket-Protocol": "mqtt"}
    for path in ("/mqtt", f"/v1/topics/{name}/stream"):
        assert ask(port, method, path, Host="localhost", **asked).status in (400, 405)
