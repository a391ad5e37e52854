"""Is there a value of any field of any route that makes the server fail or hang, and not answer?

Every path parameter, query field, header and JSON field of every route is given each of the odd
values; then come random combinations of them, whose seed is printed.
"""

from __future__ import annotations

import base64
import json
import os
import random
import socket
from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from penstock.doors.http.routing.router import Route
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.http.asking import Answer, Asking
from tests.http.protocol.odd_values import HEADER_TEXTS, HEADERS, JSONS, RAW_TEXTS, TEXTS

SEED = int(os.environ.get("FUZZ_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
RANDOM_COUNT = 1_000
LOGIN = "Basic " + base64.b64encode(b"alice:wonder").decode()

FRAMING = {"Content-Length", "Transfer-Encoding"}
# Fields of bodies that are asked for in no route's description, and values that make a body whole.
SEED_FIELDS = ("topic_name", "name", "topic", "producer_id", "consumer_id", "message")
SEED_ROUTES = ("/topics", "/size", "/producer/", "/consumer/")  # other old routes have no fields
GOOD: dict[str, Any] = {
    "payload": "x", "receipt": "r", "offsets": [0], "filter": "a/#", "topic": "there",
    "password": "p",
    "from": "earliest", "source": "s", "number": 0, "files": [], "limit": 1, "commit": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    data = tmp_path_factory.mktemp("data")
    add_users(data, alice="wonder")
    with Hosted(data) as hosted:
        with Asking(hosted.ports["http"]) as client:
            for method, path, body in (
                ("PUT", "/v1/topics/there", b""),
                (
                    "POST",
                    "/v1/topics/there/records",
                    b'[{"payload": {"a": [1]}}, {"payload": "b"}]',
                ),
                ("PUT", "/v1/topics/there/consumers/there", b""),
                ("POST", "/v1/topics/there/groups/there/fetch", b"{}"),
            ):
                assert client.ask(method, path, body, Authorization=LOGIN).status in (200, 201)
        yield hosted


@cache  # asked for every attempt, and msgspec takes a millisecond to find out
def field_names(kind: Any) -> list[str]:
    """The fields of a body's type, as they are written."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [field.encode_name for field in msgspec.structs.fields(kind)]
    return ["payload", "payload_base64", "name", "headers", "retain"]  # a message, or many


class Attempt:
    """A request in the making: a route with good values, some of which become odd."""

    def __init__(self, route: Route) -> None:
        self.route = route
        facts = route.facts if route.pattern.startswith("/v1") else None
        self.params = dict.fromkeys(
            (part[1:-1] for part in route.pattern.split("/") if part.startswith("{")), "there"
        )
        if route.method == "DELETE" and self.params:
            self.params[list(self.params)[-1]] = "gone"  # what is there is needed by the others
        self.query: dict[str, str] = {}
        self.headers = {"Host": "localhost", "Authorization": LOGIN}
        self.fields: dict[str, str] = {}  # raw JSON
        given = SEED_FIELDS if route.pattern.startswith(SEED_ROUTES) else ("name",)
        self.query_names = [field.name for field in facts.query] if facts else list(given)
        self.field_names = list(given) if facts is None else []
        if facts is not None and facts.takes is not None:
            self.field_names = field_names(facts.takes)
        for name in self.field_names:
            if name in GOOD:
                self.fields[name] = json.dumps(GOOD[name])

    def encode(self) -> bytes:
        path = "/".join(
            self.params[part[1:-1]] if part.startswith("{") else part
            for part in self.route.pattern.split("/")
        )
        if self.query:
            path += "?" + "&".join(f"{key}={value}" for key, value in self.query.items())
        body = ""
        if self.fields:
            body = "{" + ",".join(f'"{key}":{value}' for key, value in self.fields.items()) + "}"
        data = body.encode()
        headers = {"Content-Length": str(len(data))} | self.headers if data else self.headers
        lines = [f"{self.route.method} {path} HTTP/1.1".encode()]
        lines += [f"{key}: {value}".encode() for key, value in headers.items()]
        return b"\r\n".join(lines) + b"\r\n\r\n" + data


def sent(text: str) -> str:
    """A text as it is sent in a path or a query."""
    return text if text in RAW_TEXTS else quote(text, safe="")


def in_header(text: str) -> str:
    return "".join(char for char in text if char not in "\r\n\0")[:6_000]


def attempts(route: Route) -> Iterator[Attempt]:
    """One odd value at a time."""
    plain = Attempt(route)
    yield plain
    for text in RAW_TEXTS + TEXTS:
        for name in plain.params:
            one = Attempt(route)
            one.params[name] = sent(text)
            yield one
        for name in plain.query_names:
            one = Attempt(route)
            one.query[name] = sent(text)
            yield one
    for raw in JSONS + [json.dumps(text) for text in TEXTS]:
        for name in plain.field_names:
            one = Attempt(route)
            one.fields[name] = raw
            yield one


def tries(hosted: Hosted, attempt: Attempt) -> None:
    """The head of an answer comes, and it is no mistake of the server."""
    data = attempt.encode()
    with Asking(hosted.ports["http"]) as client:
        client.send(data)
        if FRAMING & set(attempt.headers):
            client._socket.shutdown(socket.SHUT_WR)  # it may not be whole, and is not answered then
        try:
            answer = client.answer(is_head=True)
        except EOFError:
            assert FRAMING & set(attempt.headers) and not hosted.troubles, data[:2_000]
            return
        check(hosted, data, answer, client)


def check(hosted: Hosted, data: bytes, answer: Answer, client: Asking) -> None:
    if answer.status == 500:
        size = int(answer.headers["content-length"])
        told = client.exactly(size)
        assert b"mistake" not in told and b"internal" not in told, (data[:2_000], told)
        assert not data.split(b" ")[1].startswith(b"/v1"), (data[:2_000], told)
    assert hosted.troubles == [], data[:2_000]


def routes(hosted: Hosted) -> list[Route]:
    return [route for route in hosted.http.router if route.handler is not None]


@pytest.mark.slow
def test_no_value_of_any_field_makes_the_server_fail(fuzzed: Hosted) -> None:
    for route in routes(fuzzed):
        for attempt in attempts(route):
            tries(fuzzed, attempt)


@pytest.mark.slow
def test_no_value_of_any_header_makes_the_server_fail(fuzzed: Hosted) -> None:
    chosen = [
        route
        for route in routes(fuzzed)
        if route.pattern in ("/healthz", "/mqtt", "/consumer/consume")
        or route.pattern.endswith(("/records", "/stream", "/fetch"))
    ]
    for route in chosen:
        for name in HEADERS:
            for text in TEXTS + HEADER_TEXTS:
                attempt = Attempt(route)
                attempt.headers[name] = in_header(text)
                tries(fuzzed, attempt)


def test_no_combination_of_values_makes_the_server_fail(fuzzed: Hosted) -> None:
    print(f"FUZZ_SEED={SEED}")
    chance = random.Random(SEED)
    every = routes(fuzzed)
    for _ in range(RANDOM_COUNT):
        attempt = Attempt(chance.choice(every))
        for name in [*attempt.params, *attempt.query_names]:
            if chance.random() < 0.3:
                text = sent(chance.choice(RAW_TEXTS + TEXTS)[:6_000])
                (attempt.params if name in attempt.params else attempt.query)[name] = text
        for name in attempt.field_names:
            if chance.random() < 0.4:
                raws = [chance.choice(JSONS), json.dumps(chance.choice(TEXTS))]
                attempt.fields[name] = chance.choice(raws)
        if chance.random() < 0.3:
            attempt.headers[chance.choice(HEADERS)] = in_header(chance.choice(TEXTS + HEADER_TEXTS))
        tries(fuzzed, attempt)
