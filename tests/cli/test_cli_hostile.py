"""Can the answers of a hostile broker make a command write where it was not told to?"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command

INFO = {
    "id": 1, "first_offset": 0, "end_offset": 1, "bytes": 1, "retention_age": None,
    "retention_bytes": None, "durability": "fsync", "epoch": 1,
}  # fmt: skip
RECORD = {"offset": 0, "timestamp": 0, "name": "x", "payload": "overwritten"}


@contextmanager
def hostile(topic: str, consumer: str = "me") -> Iterator[str]:
    """The address of a server that has one topic, and says yes to whatever it is asked about it."""

    def answer(path: str) -> Any:
        path, _, query = path.partition("?")
        if path.endswith("/v1/topics"):
            return {"topics": [INFO | {"topic": topic}]}
        if path.endswith("/consumers"):
            return {"consumers": [{"consumer": consumer, "next_offset": 0, "waiting": 1}]}
        if path.endswith("/records"):
            records = [] if "from=1" in query else [RECORD]
            place = {"first_offset": 0, "next_offset": 1, "end_offset": 1}
            return {"topic": topic, "records": records} | place
        return INFO | {"topic": topic}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = json.dumps(answer(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def export(run: Command, url: str, target: Path, *topics: str) -> tuple[int, str]:
    done = run("log", "export", "--lines", str(target), *topics, "--at", url)
    return done.code, done.err


@pytest.mark.parametrize(
    "name",
    [
        lambda tmp: str(tmp / "stolen"),
        lambda tmp: "../stolen",
        lambda tmp: "a/../../stolen",
        lambda tmp: "..",
        lambda tmp: ".",
        lambda tmp: "",
        lambda tmp: "a\0b",
        lambda tmp: "x" * 300,
    ],
)
def test_an_export_writes_only_inside_its_target(
    run: Command, tmp_path: Path, name: Callable[[Path], str]
) -> None:
    """Whatever topic the broker says it has."""
    target = tmp_path / "out"
    (tmp_path / "bystander").touch()
    with hostile(name(tmp_path)) as url:
        code, told = export(run, url, target)
    assert code == 1 and "topic name" in told and "nothing was exported" in told, told
    assert "Traceback" not in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bystander"]


def test_a_topic_that_the_broker_does_not_list_is_exported_inside_the_target(
    run: Command, tmp_path: Path
) -> None:
    with hostile("orders") as url:
        assert export(run, url, tmp_path / "out", "other")[0] == 0
        assert export(run, url, tmp_path / "out", "../stolen")[0] == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["other"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("consumer", ["../../stolen", "/tmp/stolen", "..", "a/b"])
def test_a_consumer_becomes_one_file_of_its_topic(
    run: Command, tmp_path: Path, consumer: str
) -> None:
    target = tmp_path / "out"
    with hostile("orders", consumer) as url:
        assert export(run, url, target)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (offset,) = (target / "orders" / "subscriptions").iterdir()
    assert offset.name == consumer.replace("/", "%2F") + ".offset"
    assert (target / "orders" / "messages.log").read_text() == "overwritten\n"
