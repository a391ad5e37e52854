"""Does a client that is refused read why, and is one that does not stop sending cut?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doors.hosted import Hosted
from tests.doors.ways import Reachable
from tests.http.asking import Asking

MIB = 1 << 20
TOO_LARGE = (
    b"POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n"
)


def test_a_refused_client_that_goes_on_sending_reads_why(broker: Hosted) -> None:
    with Asking(broker.ports["http"]) as client:
        client.send(TOO_LARGE)
        for _ in range(64):
            client.send(b"x" * 65_536)
        assert client.answer().status == 413
        assert client.is_closed()


def test_a_refused_client_that_sends_for_ever_is_cut_after_a_number_of_bytes(
    tmp_path: Path,
) -> None:
    with (
        Reachable(tmp_path, linger_s_max=600.0, linger_bytes_max=MIB) as broker,
        Asking(broker.ports["http"]) as client,
    ):
        client.send(TOO_LARGE)
        with pytest.raises(OSError):
            for _ in range(10_000):
                client.send(b"x" * 65_536)


def test_a_refused_client_that_does_not_close_is_cut_after_a_time(tmp_path: Path) -> None:
    with (
        Reachable(tmp_path, linger_s_max=0.5) as broker,
        Asking(broker.ports["http"]) as client,
    ):
        client.send(TOO_LARGE)
        assert client.answer().status == 413
        while broker.call(lambda: len(broker.http._lingering)):
            pass
