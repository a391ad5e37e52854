"""Is a request that looks like the one before it on its connection still judged by what is true?

Every test stores something twice in the same way, so that the connection remembers it, then changes
one thing.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.app.server import Server
from penstock.broker.access import Access
from tests.doors.hosted import Hosted
from tests.each import each
from tests.http.asking import Asking

RECORDS = "/v1/topics/readings/records"


def store(client: Asking, path: str = RECORDS, **headers: str) -> int:
    return client.ask("POST", path, {"payload": "x"}, **headers).status


def basic(login: str, password: str) -> dict[str, str]:
    pair = base64.b64encode(f"{login}:{password}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Hosted]:
    with Hosted(tmp_path) as broker:
        broker.run(lambda server: server.broker.create_topic("readings"))
        yield broker


@pytest.fixture
def client(broker: Hosted) -> Iterator[Asking]:
    with Asking(broker.ports["http"]) as client:
        assert [store(client), store(client)] == [200, 200]
        yield client


HEADS: list[tuple[dict[str, str], int]] = [
    ({"Origin": "https://evil.example"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Content-Encoding": "gzip"}, 415),
    ({"Penstock-Tenant": "acme"}, 403),
    ({"Penstock-Passed": "x"}, 200),  # only nodes ask each other
    ({"Forwarded": "for=192.0.2.1"}, 200),  # from no trusted proxy
]


@each("case", HEADS)
def test_a_header_that_decides_is_looked_at(
    case: tuple[dict[str, str], int], client: Asking
) -> None:
    headers, status = case
    assert [store(client, **headers), store(client)] == [status, 200]


def test_another_path_or_method_is_another_request(client: Asking) -> None:
    assert client.ask("DELETE", RECORDS).status == 405
    assert store(client, "/v1/topics/nowhere/records") == 404
    assert client.ask("GET", RECORDS).json["end_offset"] == 2


def test_another_host_is_another_request(client: Asking) -> None:
    client.send(f"POST {RECORDS} HTTP/1.1\r\nHost: evil.example\r\n\r\n".encode())
    assert client.answer().status == 421


def test_the_first_user_ends_it(broker: Hosted, client: Asking) -> None:
    broker.run(lambda server: server.broker.engine.access.add_user("hal", b"9000"))
    assert [store(client), store(client, **basic("hal", "9000"))] == [401, 200]


def test_what_changes_for_a_user_counts_for_the_next_request(
    broker: Hosted, client: Asking
) -> None:
    def change(work: Callable[[Access], Coroutine[Any, Any, object]]) -> None:
        broker.run(lambda server: work(server.broker.engine.access))

    change(lambda access: access.add_user("dave", b"bowman"))
    change(lambda access: access.add_user("hal", b"9000", ["client"]))
    old, new = basic("hal", "9000"), basic("hal", "9001")
    assert [store(client, **old), store(client, **old), store(client)] == [200, 200, 401]
    assert [store(client, **old), store(client, **basic("hal", "9001"))] == [200, 401]
    change(lambda access: access.set_roles("hal", ["reader"]))
    assert store(client, **old) == 403
    change(lambda access: access.set_roles("hal", ["client"]))
    change(lambda access: access.set_password("hal", b"9001"))
    assert [store(client, **old), store(client, **new), store(client, **new)] == [401, 200, 200]
    change(lambda access: access.remove_user("hal"))
    assert [store(client, **new), store(client, **basic("dave", "bowman"))] == [401, 200]


def test_a_tenant_that_is_removed_ends_it(broker: Hosted) -> None:
    async def add(server: Server) -> None:
        await server.broker.tenants.add("acme", "Wile E.", "Coyote", "c@acme.example")
        await server.broker.engine.access.add_user("dave", b"bowman")
        await server.broker.engine.access.add_user("ann", b"of acme", tenant="acme")

    broker.run(add)
    ann = basic("acme/ann", "of acme")
    with Asking(broker.ports["http"]) as client:
        assert client.ask("PUT", "/v1/topics/readings", **ann).status == 201
        assert [store(client, **ann), store(client, **ann)] == [200, 200]
        broker.run(lambda server: server.broker.tenants.remove("acme", purge=True))
        assert store(client, **ann) == 401
