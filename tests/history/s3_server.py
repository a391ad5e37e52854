"""A real S3 server on this machine (moto), and a proxy in front of it that fails on purpose."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BUCKET = "records"
STARTS_S_MAX = 60.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def options_of(port: int) -> dict[str, str]:
    """What [history.options] says to reach it."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


@contextmanager
def s3_server() -> Iterator[int]:
    """The port of a server with an empty bucket."""
    port = _free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _make_bucket(port)
        yield port
    finally:
        server.kill()
        server.wait()


def _make_bucket(port: int) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
    give_up_s = time.monotonic() + STARTS_S_MAX
    while True:
        try:
            urllib.request.urlopen(request, timeout=5)
            return
        except OSError:
            assert time.monotonic() < give_up_s, "moto does not start"
            time.sleep(0.1)  # another process: nothing says when it listens


@contextmanager
def failing_proxy(port: int, every: int, *, loses_answers: bool = False) -> Iterator[int]:
    """A port that forwards requests; every so manieth is answered with 503.

    That one is not carried out; or it is, and only its answer gets lost.
    """
    lock = threading.Lock()
    seen = 0

    class Forward(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            nonlocal seen
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            with lock:
                seen += 1
                fails = seen % every == 0
            if fails and not loses_answers:
                self._answer(503, [], b"")
                return
            inner = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            inner.request(self.command, self.path, body, dict(self.headers.items()))
            answer = inner.getresponse()
            found = answer.read()
            inner.close()
            if fails:
                self._answer(503, [], b"")
            else:
                self._answer(answer.status, answer.getheaders(), found)

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            is_head = self.command == "HEAD"
            for key, value in headers:
                if key.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(key, value)
            sizes = [value for key, value in headers if key.lower() == "content-length"]
            self.send_header("Content-Length", sizes[0] if is_head and sizes else str(len(body)))
            self.end_headers()
            if not is_head:
                with suppress(OSError):
                    self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy.server_address[1]
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
