"""One HTTP connection to a broker, for Spark drivers and tasks: synchronous, kept open, light."""

from __future__ import annotations

import http.client
import ssl
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote, urlencode

from penstock.client.transport import Answer, Target
from penstock.client.wire import check
from penstock.model.errors import UnavailableError

ANSWER_S_MAX: Final = 60.0


class BrokerLink:
    """Requests to one broker. Pickles as where it leads, without its connection."""

    def __init__(self, url: str, user: str = "", password: str = "", token: str = "") -> None:
        self._given = (url, user, password, token)
        self._target = Target(url, user, password, token)
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
        may_repeat: bool = True,
    ) -> Answer:
        """The broker's answer if it is as wished for; else the error it stands for.

        A kept connection may have been closed meanwhile: what may be repeated is, once.
        """
        target = path + (f"?{urlencode(query)}" if query else "")
        sent = dict(headers or {})
        if self._target.authorization:
            sent["Authorization"] = self._target.authorization
        is_kept = self._connection is not None
        try:
            answer = self._exchange(method, target, body, sent)
        except (OSError, http.client.HTTPException) as failed:
            self.close()
            if not (is_kept and may_repeat):
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
        self._connection.request(method, target, body or None, headers)
        response = self._connection.getresponse()
        answer = Answer()
        answer.status = response.status
        answer.headers = {key.lower(): value for key, value in response.getheaders()}
        answer.body = bytearray(response.read())
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        target = self._target
        if target.is_tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                target.host, target.port, timeout=ANSWER_S_MAX, context=context
            )
        return http.client.HTTPConnection(target.host, target.port, timeout=ANSWER_S_MAX)

    def _unavailable(self, failed: Exception) -> UnavailableError:
        return UnavailableError(f"no answer from the broker at {self._target.address}: {failed}")

    def close(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
            self._connection = None


def topic_path(topic: str, *rest: str) -> str:
    return "/".join(["/v1/topics", quote(topic, safe=""), *rest])
