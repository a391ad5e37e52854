"""Who may ask: users, nobody, and web pages that borrow somebody's browser."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.doors.http.routing.needs import Needs
from penstock.doors.http.routing.router import Route
from penstock.doors.http.wire.connection import HttpConnection
from penstock.doors.http.wire.messages import Request, Response, Streamed, Writer
from tests.doors.certificates import Authority
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.http.asking import Asking


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    data = tmp_path_factory.mktemp("data")
    add_users(data, alice="wön:der")
    with Hosted(data) as hosted:
        yield hosted


def test_a_user_of_mqtt_is_a_user_here(guarded: Hosted) -> None:
    with Asking(guarded.ports["http"]) as client:
        for _ in range(3):  # hashed once, remembered then
            answer = client.ask("GET", "/metrics", Authorization=basic("alice", "wön:der"))
            assert answer.status == 200


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (None, "log in"),
        (basic("alice", "wrong"), "wrong user name or password"),
        (basic("bob", "wön:der"), "wrong user name or password"),
        ("Basic !!!", "does not contain user:password"),
        ("Basic YWxpY2U=", "does not contain user:password"),
        ("Digest x", "is neither Basic nor Bearer"),
        ("Bearer psk_nobodys", "unknown or revoked key"),
        ("Bearer", "unknown or revoked key"),
    ],
)
def test_whoever_does_not_fit_is_asked_to_log_in(
    guarded: Hosted, given: str | None, complaint: str
) -> None:
    with Asking(guarded.ports["http"]) as client:
        headers = {} if given is None else {"Authorization": given}
        answer = client.ask("GET", "/metrics", **headers)
        assert (answer.status, complaint in answer.detail) == (401, True)
        assert answer.headers["www-authenticate"].startswith("Basic realm=")
        assert client.ask("GET", "/healthz").status == 200


def test_a_key_lets_its_user_in_until_it_is_revoked(tmp_path: Path) -> None:
    add_users(tmp_path, alice="wonder", bob="builder")

    def asked(client: Asking, key: str) -> int:
        return client.ask("GET", "/metrics", Authorization=f"Bearer {key}").status

    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        access = broker.exchange.engine.access
        key = broker.run(lambda server: access.make_key("alice"))
        other = broker.run(lambda server: access.make_key("bob"))
        assert key.startswith("psk_") and asked(client, key) == asked(client, other) == 200
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        access = broker.exchange.engine.access
        assert asked(client, key) == asked(client, other) == 200
        (mine,) = [row for row in access.access_keys() if row.user == "alice"]
        broker.run(lambda server: access.revoke_key(mine.key_id))
        assert (asked(client, key), asked(client, other)) == (401, 200)
        broker.run(lambda server: access.remove_user("bob"))
        assert asked(client, other) == 401
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        assert asked(client, key) == asked(client, other) == 401


def test_health_and_readiness_ask_for_no_login(guarded: Hosted) -> None:
    with Asking(guarded.ports["http"]) as client:
        assert client.ask("GET", "/healthz").status == client.ask("GET", "/readyz").status == 200


def test_without_users_a_name_counts_for_nothing(client: Asking) -> None:
    assert client.ask("GET", "/metrics", Authorization=basic("x", "y")).status == 200


def test_an_open_address_is_refused_until_somebody_can_log_in(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"0\.0\.0\.0 would accept everybody"):
        Hosted(tmp_path, http__listen="0.0.0.0:0").__enter__()
    settings = {"http__listen": "0.0.0.0:0", "access__allow_anonymous": True}
    with Hosted(tmp_path, **settings) as broker, Asking(broker.ports["http"]) as client:
        assert client.ask("GET", "/metrics").status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1"])
def test_a_page_of_another_origin_is_refused(client: Asking, origin: str) -> None:
    answer = client.ask("GET", "/metrics", Origin=origin)
    assert answer.status == 403 and "[http] origins" in answer.detail
    assert client.ask("OPTIONS", "/metrics", Origin=origin).status == 403


def test_a_page_of_this_server_may_ask(client: Asking) -> None:
    assert client.ask("GET", "/metrics", Origin="http://localhost").status == 200


def test_a_listed_page_may_ask_and_read(tmp_path: Path) -> None:
    page = "https://dash.example"
    with Hosted(tmp_path, http__origins=page) as broker, Asking(broker.ports["http"]) as client:
        answer = client.ask("GET", "/metrics", Origin=page)
        assert answer.headers["access-control-allow-origin"] == page
        answer = client.ask(
            "OPTIONS", "/metrics", Origin=page, Access_Control_Request_Headers="authorization"
        )
        assert answer.headers["access-control-allow-methods"] == "GET, HEAD, OPTIONS"
        assert answer.headers["access-control-allow-headers"] == "authorization"
        assert client.ask("GET", "/metrics", Origin="https://evil.example").status == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8090", 200),
        ("[::1]:8090", 200),
        ("penstock.localhost", 200),
        ("evil.example:8090", 421),
        ("127.0.0.1.evil.example", 421),
    ],
)
def test_a_name_that_was_pointed_at_this_machine_lets_no_page_in(
    broker: Hosted, host: str, status: int
) -> None:
    """Else a page could name its own host 127.0.0.1 and be of the same origin."""
    with Asking(broker.ports["http"]) as client:
        client.send(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert client.answer().status == status


def test_where_people_log_in_the_server_may_have_any_name(guarded: Hosted) -> None:
    with Asking(guarded.ports["http"]) as client:
        login = basic("alice", "wön:der")
        client.send(
            f"GET /metrics HTTP/1.1\r\nHost: b.example\r\nAuthorization: {login}\r\n\r\n".encode()
        )
        assert client.answer().status == 200


def test_tls_serves_the_same(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("server")
    context = ssl.create_default_context(cafile=str(authority.cert))
    files = {"mqtt__tls_cert": str(cert), "mqtt__tls_key": str(key)}  # HTTP uses them too
    with Hosted(tmp_path / "data", http__tls_listen="127.0.0.1:0", **files) as broker:
        bare = socket.create_connection(("127.0.0.1", broker.ports["https"]), 20)
        with Asking(0, context.wrap_socket(bare, server_hostname="localhost")) as client:
            for _ in range(3):
                assert client.ask("GET", "/healthz").body == b"ok\n"
            client.send(b"nonsense\r\n\r\n")
            assert client.answer().status == 400


# Stopping, and answers that take their time


def test_requests_under_way_are_finished_when_the_server_stops(tmp_path: Path) -> None:
    begun = threading.Event()
    waiting: list[Request] = []

    def wait(request: Request) -> None:
        waiting.append(request)
        begun.set()

    with Hosted(tmp_path) as broker:
        port = broker.ports["http"]
        broker.call(lambda: broker.http.router.add(Route("GET", "/wait", wait, needs=Needs.LOGIN)))
        idle, busy = Asking(port), Asking(port)
        assert idle.ask("GET", "/healthz").status == 200
        busy.send(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert begun.wait(20)
        loop = broker._loop
        assert loop is not None and broker._stop is not None
        loop.call_soon_threadsafe(broker._stop.set)
        assert idle.is_closed()
        loop.call_soon_threadsafe(lambda: waiting[0].reply(Response(200, b"late")))
        answer = busy.answer()
        assert (answer.body, answer.headers["connection"]) == (b"late", "close")
        assert busy.is_closed()


def test_a_stream_is_held_by_a_reader_that_does_not_read(broker: Hosted) -> None:
    written = 0
    chunk = b"x" * 65_536

    async def produce(writer: Writer) -> None:
        nonlocal written
        for _ in range(400):
            writer.write(chunk)
            written += len(chunk)
            await writer.wait_room()

    route = Route(
        "GET", "/long", lambda request: Streamed(produce, "text/plain"), needs=Needs.LOGIN
    )
    broker.call(lambda: broker.http.router.add(route))
    with Asking(broker.ports["http"]) as client:
        client.send(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
        first = client.until(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in first
        before = -1
        while before != written:  # until it is held
            before = written
            broker.call(lambda: None)
            client.exactly(1_000)
        assert written < 400 * len(chunk)


def test_a_stream_is_whole_and_the_next_request_follows(broker: Hosted) -> None:
    async def produce(writer: Writer) -> None:
        for at in range(1_000):
            writer.write(b"%d," % at)
            await writer.wait_room()

    route = Route(
        "GET", "/numbers", lambda request: Streamed(produce, "text/plain"), needs=Needs.LOGIN
    )
    broker.call(lambda: broker.http.router.add(route))
    whole = b"".join(b"%d," % at for at in range(1_000))
    with Asking(broker.ports["http"]) as client:
        for _ in range(2):
            assert client.ask("GET", "/numbers").body == whole
        assert client.ask("HEAD", "/numbers").headers["transfer-encoding"] == "chunked"
        client.send(b"GET /numbers HTTP/1.0\r\n\r\n")
        assert client.answer().body == whole


@pytest.mark.parametrize("step", ["flush", "look_at_time"])
def test_a_mistake_of_ours_with_one_connection_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    waiting: dict[str, Request] = {}
    have_come = threading.Event()

    def wait(request: Request) -> None:
        waiting[request.query["who"]] = request
        if len(waiting) == 3:
            have_come.set()

    def answer_all() -> None:
        for who in ("before", "broken", "after"):  # all go out at the end of this tick
            waiting[who].reply(Response(200, who.encode()))

    with Hosted(tmp_path) as broker:
        broker.call(lambda: broker.http.router.add(Route("GET", "/wait", wait, needs=Needs.LOGIN)))
        clients = {who: Asking(broker.ports["http"]) for who in ("before", "broken", "after")}
        for who, client in clients.items():
            client.send(f"GET /wait?who={who} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert have_come.wait(20)
        broken = waiting["broken"].asker
        do = getattr(HttpConnection, step)

        def fail(connection: HttpConnection) -> None:
            if connection is broken:
                raise ZeroDivisionError("ours")
            do(connection)

        monkeypatch.setattr(HttpConnection, step, fail)
        if step == "flush":
            broker.call(answer_all)
        assert clients["broken"].is_closed()
        if step == "look_at_time":
            broker.call(answer_all)
        for who in ("before", "after"):
            assert clients[who].answer().body == who.encode()
        (trouble,) = broker.troubles
        assert "a connection was closed" in trouble and "ZeroDivisionError" in trouble
        broker.troubles.clear()


def test_a_mistake_of_ours_costs_one_answer_and_is_reported(tmp_path: Path) -> None:
    def fail(request: Request) -> Response:
        raise ZeroDivisionError("secret")

    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        broker.call(lambda: broker.http.router.add(Route("GET", "/fail", fail, needs=Needs.LOGIN)))
        answer = client.ask("GET", "/fail")
        assert answer.status == 500 and "secret" not in answer.detail
        assert client.ask("GET", "/healthz").status == 200
        assert [trouble for trouble in broker.troubles if "ZeroDivisionError" in trouble]
        broker.troubles.clear()


@pytest.mark.parametrize(
    ("readers", "statuses"),
    [("open", (200, 200, 200)), ("login", (401, 200, 200)), ("admin", (401, 403, 200))],
)
def test_a_setting_says_who_may_read_metrics(
    tmp_path: Path, readers: str, statuses: tuple[int, ...]
) -> None:
    add_users(tmp_path, alice="wonder", bob="builder")
    logins: list[dict[str, str]] = [{}]
    logins += [{"Authorization": basic(*one)} for one in (("bob", "builder"), ("alice", "wonder"))]
    with Hosted(tmp_path, access__metrics=readers) as broker:
        client = Asking(broker.ports["http"])
        assert tuple(client.ask("GET", "/metrics", **one).status for one in logins) == statuses
