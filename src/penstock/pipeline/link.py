"""One HTTP connection to a broker, for Spark drivers and tasks: synchronous, kept open, light."""

from __future__ import annotations

import http.client
import ssl
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from penstock.client.answer import Answer, check
from penstock.client.target import Target
from penstock.model import unix_socket
from penstock.model.errors import UnavailableError

ANSWER_S_MAX: Final = 60.0
AGAIN_S: Final = 0.25  # between tries


class BrokerLink:
    """Requests to one broker. Pickles as where it leads, without its connection."""

    def __init__(
        self, url: str, user: str = "", password: str = "", token: str = "", tenant: str = ""
    ) -> None:
        self._given = (url, user, password, token, tenant)
        self._target = Target(*self._given)
        self._answer_s = ANSWER_S_MAX
        self._connection: http.client.HTTPConnection | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return BrokerLink, self._given

    def ask(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        answer_s: float = ANSWER_S_MAX,
        patience_s: float = 0.0,
    ) -> Answer:
        """The broker's answer if it is as wished for; else the error it stands for.

        Whatever is asked here may be asked again: it is, once, when a kept connection was closed
        meanwhile; and for as long as `patience_s` while the broker is unavailable.
        """
        self._answer_s = answer_s
        deadline_s: float | None = None
        while True:
            try:
                return self._ask(method, path, query, body, headers)
            except UnavailableError:
                now_s = time.monotonic()
                deadline_s = now_s + patience_s if deadline_s is None else deadline_s
                if now_s >= deadline_s:
                    raise
                time.sleep(AGAIN_S)

    def _ask(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None,
        body: bytes,
        headers: dict[str, str] | None,
    ) -> Answer:
        target = path + (f"?{urlencode(query)}" if query else "")
        sent = dict(headers or {})
        if self._target.authorization:
            sent["Authorization"] = self._target.authorization
        if self._target.tenant:
            sent["Penstock-Tenant"] = self._target.tenant
        is_kept = self._connection is not None
        try:
            answer = self._exchange(method, target, body, sent)
        except (OSError, http.client.HTTPException) as failed:
            self.close()
            if not is_kept:
                raise self._unavailable(failed) from failed
            try:
                answer = self._exchange(method, target, body, sent)
            except (OSError, http.client.HTTPException) as again:
                self.close()
                raise self._unavailable(again) from again
        check(answer)
        return answer

    def _exchange(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Answer:
        if self._connection is None:
            self._connection = self._connect()
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(self._answer_s)
        self._connection.request(method, target, body or None, headers)
        response = self._connection.getresponse()
        answer = Answer()
        answer.status = response.status
        answer.headers = {key.lower(): value for key, value in response.getheaders()}
        answer.body = _body(response)
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        target = self._target
        if target.socket_path is not None:
            return _LocalConnection(target.socket_path, self._answer_s)
        if target.is_tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                target.host, target.port, timeout=self._answer_s, context=context
            )
        return http.client.HTTPConnection(target.host, target.port, timeout=self._answer_s)

    def _unavailable(self, failed: Exception) -> UnavailableError:
        return UnavailableError(f"no answer from the broker at {self._target.address}: {failed}")

    def close(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
            self._connection = None


class _LocalConnection(http.client.HTTPConnection):
    """HTTP over the socket in a data directory."""

    def __init__(self, path: Path, answer_s: float) -> None:
        super().__init__("localhost", timeout=answer_s)
        self._path = path
        self._answer_s = answer_s

    def connect(self) -> None:
        self.sock = unix_socket.connect(self._path, self._answer_s)


def _body(response: http.client.HTTPResponse) -> bytearray:
    """Read in place: answers with Arrow have megabytes."""
    if response.length is None:
        return bytearray(response.read())
    body = bytearray(response.length)
    view = memoryview(body)
    at = 0
    while at < len(body):
        count = response.readinto(view[at:])
        if not count:
            raise http.client.IncompleteRead(bytes(view[:at]), len(body) - at)
        at += count
    return body


def topic_path(topic: str, *rest: str) -> str:
    return "/".join(["/v1/topics", quote(topic, safe=""), *rest])
