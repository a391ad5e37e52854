"""Can a request slip past a bound by how it is written?"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import pytest

from tests.doors.hosted import Hosted
from tests.http.asking import Asking

ARROW = "application/vnd.apache.arrow.stream"
BATCHES = "application/vnd.penstock.batches"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with Hosted(tmp_path_factory.mktemp("small")) as hosted:
        with Asking(hosted.ports["http"]) as client:
            assert client.ask("PUT", "/v1/topics/small").status == 201
            body = json.dumps([{"payload": str(at)} for at in range(10_001)]).encode()
            assert client.ask("POST", "/v1/topics/small/records", body).status == 200
        yield hosted


@pytest.fixture
def client(broker: Hosted) -> Iterator[Asking]:
    with Asking(broker.ports["http"]) as asking:
        yield asking


@pytest.mark.parametrize("accept", ["application/json", ARROW, BATCHES])
@pytest.mark.parametrize("limit", ["000000001999999", "0001000001", "0" * 4_000 + "1000001"])
def test_zeros_before_a_limit_do_not_lift_it(client: Asking, accept: str, limit: str) -> None:
    answer = client.ask("GET", f"/v1/topics/small/records?limit={limit}", Accept=accept)
    assert answer.status == 400


def test_a_limit_with_zeros_before_it_counts(client: Asking) -> None:
    answer = client.ask("GET", "/v1/topics/small/records?limit=00000000007")
    assert len(answer.json["records"]) == 7


@pytest.mark.parametrize("path", ["/v1/topics/small/records", "/v1/topics/other", "/topics"])
@pytest.mark.parametrize("coding", ["gzip", "GZip", "identity, gzip", "br"])
def test_a_compressed_body_is_refused_by_the_name_of_its_coding(
    client: Asking, path: str, coding: str
) -> None:
    method = "PUT" if path.endswith("other") else "POST"
    body = gzip.compress(b"x" * 100)
    answer = client.ask(method, path, body, Content_Encoding=coding, Content_Type="text/plain")
    assert answer.status == 415
    assert f"Content-Encoding '{coding.lower()}'" in answer.body.decode()
    assert answer.headers["accept-encoding"] == "identity"
    assert client.ask("GET", "/healthz").status == 200


def test_a_body_that_is_not_compressed_may_say_so(client: Asking) -> None:
    path = "/v1/topics/small/records"
    assert client.ask("POST", path, {"payload": "x"}, Content_Encoding="identity").status == 200


@pytest.mark.parametrize("part", ["head", "trailer"])
def test_five_thousand_headers_of_one_name_are_too_many(client: Asking, part: str) -> None:
    many = b"X: 1\r\n" * 5_000
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    if part == "head":
        client.send(head + many + b"\r\n")
    else:
        client.send(head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + many + b"\r\n")
    answer = client.answer()
    assert answer.status == 431
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    "coding",
    [
        "gzip, chunked",
        "chunked, chunked",
        "chunked, identity",
        "xchunked",
        "identity",
        "chunked\r\nTransfer-Encoding: identity",
        "chunked\r\nContent-Length: 4",
    ],
)
def test_nothing_behind_an_ambiguous_transfer_encoding_is_answered(
    client: Asking, coding: str
) -> None:
    behind = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = f"POST /topics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: {coding}\r\n\r\n"
    client.send(head.encode() + b"0\r\n\r\n" + behind)
    answer = client.answer()
    assert answer.status == 400
    assert answer.headers["connection"] == "close"
    assert client.is_closed()


def test_http_1_0_has_no_transfer_encoding(client: Asking) -> None:
    client.send(b"POST /topics HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert client.answer().status == 400
    assert client.is_closed()
