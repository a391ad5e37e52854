"""One request to a broker over a connection of its own: blocking, without an event loop.

For commands: the loop and its thread would take longer to start than the broker to answer.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from penstock.client.answer import ANSWER_S_MAX, CONNECT_S_MAX, READ_BYTES, Answer, AnswerReader
from penstock.client.target import Target
from penstock.model import unix_socket


def ask_once(
    target: Target,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """The broker's answer, whatever its status; errors as those of `Transport.ask`.

    A request that only reads is sent once more when its connection breaks.
    """
    data = target.encode(method, path, body, headers or {})
    is_reading = method == "GET"
    is_repeated = False
    while True:
        try:
            answer = _exchange(target, data)
        except OSError as failed:
            if not is_reading or is_repeated or isinstance(failed, TimeoutError):
                raise target.answer_lost(failed, is_reading=is_reading) from failed
            is_repeated = True
        else:
            answer.is_reading, answer.is_repeated = is_reading, is_repeated
            return answer


def _exchange(target: Target, data: bytes) -> Answer:
    """OSError when the connection breaks before the whole answer has come, or is silent."""
    with _connect(target) as connection:
        connection.settimeout(ANSWER_S_MAX)
        connection.sendall(data)
        reading = AnswerReader()
        while not reading.feed(connection.recv(READ_BYTES)):
            pass
        return reading.answer


def _connect(target: Target) -> socket.socket:
    try:
        if target.socket_path is not None:
            return unix_socket.connect(target.socket_path, CONNECT_S_MAX)
        connection = socket.create_connection((target.host, target.port), CONNECT_S_MAX)
        try:
            return _over_tls(target, connection) if target.is_tls else connection
        except BaseException:
            connection.close()
            raise
    except OSError as failed:
        raise target.not_reached(failed) from failed


def _over_tls(target: Target, connection: socket.socket) -> socket.socket:
    import ssl

    return ssl.create_default_context().wrap_socket(connection, server_hostname=target.host)
