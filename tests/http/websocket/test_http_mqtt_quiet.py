"""MQTT inside WebSocket: may a client be quiet for as long as its keep alive allows?"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import replace

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.doors.hosted import Hosted
from tests.doors.wire import Wire
from tests.http.asking import Asking
from tests.waiting import WAIT_S

PING_S = 1  # so short that a quiet client would be pinged between its own pings
KEEP_ALIVE_S = 2


@pytest.fixture(scope="module")
def pinging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """A broker that pings those WebSockets that it pings after a second of silence."""
    hosted = Hosted(tmp_path_factory.mktemp("data"))
    limits = replace(hosted._settings.http_limits, ping_s=PING_S)
    hosted._settings = replace(hosted._settings, http_limits=limits)
    with hosted:
        yield hosted


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5], ids=["3.1.1", "5"])
def test_paho_that_is_quiet_for_two_keep_alives_stays_connected_and_gets_its_message(
    pinging: Hosted, name: str, version: int
) -> None:
    """Silence but for the client's own PINGREQ: is it the same connection that gets the message?"""
    messages: queue.Queue[bytes] = queue.Queue()
    subscribed: queue.Queue[object] = queue.Queue()
    pings: queue.Queue[str] = queue.Queue()
    ends: list[object] = []

    def on_log(client: object, data: object, level: int, text: str) -> None:
        if "PINGRESP" in text:
            pings.put(text)

    client = paho.Client(
        CallbackAPIVersion.VERSION2, name[-20:], protocol=version, transport="websockets"
    )
    client.on_connect = lambda client, *rest: client.subscribe(f"{name}/#", 1)
    client.on_subscribe = lambda *rest: subscribed.put(rest)
    client.on_message = lambda c, d, message: messages.put(message.payload)
    client.on_disconnect = lambda *rest: ends.append(rest)
    client.on_log = on_log
    client.connect("127.0.0.1", pinging.ports["http"], KEEP_ALIVE_S)
    client.loop_start()
    try:
        subscribed.get(timeout=WAIT_S)
        for _ in range(2):
            pings.get(timeout=WAIT_S)
        with Wire(pinging.port, f"{name}-2") as other:
            other.connect()
            other.publish(f"{name}/x", b"after the silence", 1)
        assert messages.get(timeout=WAIT_S) == b"after the silence"
        assert ends == []
    finally:
        client.disconnect()
        client.loop_stop()


def test_a_quiet_reader_of_a_stream_is_pinged(pinging: Hosted) -> None:
    """Does the broker ping where the protocol inside has no keep alive?"""
    with Asking(pinging.ports["http"]) as client:
        client.ask("PUT", "/v1/topics/quiet")
        answer = client.ask(
            "GET",
            "/v1/topics/quiet/stream",
            Upgrade="websocket",
            Connection="Upgrade",
            Sec_WebSocket_Version="13",
            Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==",
        )
        assert answer.status == 101
        assert client.rest().endswith(b"\x89\x00")  # it never answers, so it is cut
