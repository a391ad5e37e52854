"""MQTT inside WebSocket: does `/mqtt` carry it, however the bytes are cut?"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock.mqtt.encode import encode
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect, Pingreq, Pingresp, Puback, Publish
from penstock.mqtt.reasons import Reason
from tests.doors.certificates import Authority
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Asking
from tests.http.framed import Framed, open_websocket
from tests.waiting import WAIT_S

VERSIONS = pytest.mark.parametrize("version", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5])


def framed_wire(port: int, client_id: str, version: int, cut: int | None = None) -> Wire:
    return Wire(0, client_id, version, cast(Any, Framed(port, cut)))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Hosted]:
    cert, key = authority.sign("server")
    files = {"http__tls_cert": str(cert), "http__tls_key": str(key)}
    data = tmp_path_factory.mktemp("data")
    with Hosted(data, http__tls_listen="127.0.0.1:0", **files) as hosted:
        yield hosted


def check_round_trips(port: int, client_id: str, version: int, ca: Path | None = None) -> None:
    """A paho client hears itself, at every QoS and up to a megabyte."""
    messages: queue.Queue[tuple[int, bytes]] = queue.Queue()
    subscribed: queue.Queue[object] = queue.Queue()
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id, protocol=version, transport="websockets"
    )
    if ca is not None:
        client.tls_set(str(ca))
    client.on_connect = lambda client, *rest: client.subscribe(f"{client_id}/#", 2)
    client.on_subscribe = lambda *rest: subscribed.put(rest)
    client.on_message = lambda c, d, message: messages.put((message.qos, message.payload))
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        subscribed.get(timeout=WAIT_S)
        for qos, payload in ((0, b"a"), (1, b"b" * 70_000), (2, b"c" * 1_000_000)):
            client.publish(f"{client_id}/x", payload, qos)
            assert messages.get(timeout=WAIT_S) == (qos, payload)
    finally:
        client.disconnect()
        client.loop_stop()


@VERSIONS
def test_paho_speaks_mqtt_through_it(broker: Hosted, name: str, version: int) -> None:
    check_round_trips(broker.ports["http"], name[-20:], version)


@VERSIONS
def test_paho_speaks_mqtt_through_tls(
    secure: Hosted, authority: Authority, name: str, version: int
) -> None:
    check_round_trips(secure.ports["https"], name[-20:], version, authority.cert)


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("cut", [1, 2, 3, 7])
def test_packets_may_be_split_over_frames_at_any_byte(
    broker: Hosted, name: str, version: int, cut: int
) -> None:
    with framed_wire(broker.ports["http"], name, version, cut) as wire:
        wire.connect()
        wire.subscribe(f"{name}/#", qos=1)
        wire.publish(f"{name}/x", b"payload", 1)
        assert wire.pick(Publish).payload == b"payload"


def test_fragments_of_one_message_and_control_frames_between_them_are_fine(
    broker: Hosted, name: str
) -> None:
    with framed_wire(broker.ports["http"], name, MQTT_5) as wire:
        wire.connect()
        socket = cast(Framed, wire._socket).socket
        data = encode(Publish(f"{name}/x", b"payload", 1, packet_id=7), MQTT_5)

        def parts() -> Iterator[bytes]:
            for at in range(len(data)):
                if at == 5:
                    assert socket.ping() is not None
                yield data[at : at + 1]

        socket.send(parts())
        assert wire.expect(Puback).packet_id == 7


def test_one_frame_may_hold_several_packets(broker: Hosted, name: str) -> None:
    with framed_wire(broker.ports["http"], name, MQTT_3_1_1) as wire:
        publishes = [Publish(f"{name}/x", b"", 1, packet_id=at) for at in range(1, 101)]
        wire.send(Connect(name, version=MQTT_3_1_1, clean_start=True), *publishes, Pingreq())
        wire.expect(Connack)
        assert [wire.pick(Puback).packet_id for _ in range(100)] == list(range(1, 101))
        wire.pick(Pingresp)


def test_a_text_frame_ends_the_connection(broker: Hosted, name: str) -> None:
    socket = open_websocket(broker.ports["http"], "/mqtt", "mqtt")
    socket.send("hello")
    with pytest.raises(ConnectionClosed):
        socket.recv(WAIT_S)
    assert socket.protocol.close_code == 1003


def test_a_packet_that_breaks_the_rules_ends_the_connection(broker: Hosted, name: str) -> None:
    with framed_wire(broker.ports["http"], name, MQTT_5) as wire:
        wire.connect()
        wire.send_bytes(b"\xff\xff")
        assert wire.expect(Disconnect).reason == Reason.MALFORMED_PACKET
        assert wire.is_closed()


@pytest.mark.parametrize("subprotocol", ["mqtt", "mqttv3.1"])
def test_both_names_of_the_subprotocol_are_taken(broker: Hosted, subprotocol: str) -> None:
    with open_websocket(broker.ports["http"], "/mqtt", subprotocol) as socket:
        assert socket.subprotocol == subprotocol


@pytest.mark.parametrize("subprotocol", [None, "chat"])
def test_who_does_not_ask_for_mqtt_is_refused(broker: Hosted, subprotocol: str | None) -> None:
    with pytest.raises(InvalidStatus) as raised:
        open_websocket(broker.ports["http"], "/mqtt", subprotocol)
    assert raised.value.response.status_code == 400
    assert b"subprotocol" in (raised.value.response.body or b"")


def test_a_plain_request_is_told_to_upgrade(client: Asking) -> None:
    answer = client.ask("GET", "/mqtt")
    assert (answer.status, answer.headers["upgrade"]) == (426, "websocket")
    assert client.ask("GET", "/healthz").status == 200
    assert client.ask("POST", "/mqtt").status == 405


def test_a_broken_handshake_is_refused(client: Asking) -> None:
    asked = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Protocol": "mqtt"}
    answer = client.ask("GET", "/mqtt", **asked, Sec_WebSocket_Key="short")
    assert answer.status == 400 and "Sec-WebSocket-Key" in answer.detail
    assert client.is_closed()


def test_pages_of_other_origins_are_refused_unless_listed(tmp_path: Path) -> None:
    with Hosted(tmp_path, http__origins="https://dash.example") as broker:
        port = broker.ports["http"]
        for origin in ("https://dash.example", f"http://127.0.0.1:{port}"):
            open_websocket(port, "/mqtt", "mqtt", origin).close()
        for origin in (
            "https://evil.example",
            "null",
            "http://127.0.0.1:1",
            "https://dash.example:1",
        ):
            with pytest.raises(InvalidStatus) as raised:
                open_websocket(port, "/mqtt", "mqtt", origin)
            assert raised.value.response.status_code == 403


def test_clients_log_in_with_their_connect_packet(tmp_path: Path) -> None:
    add_users(tmp_path, alice="wonder")
    with Hosted(tmp_path) as broker:
        for user, password, reason in (
            ("alice", b"wonder", Reason.SUCCESS),
            ("alice", b"wrong", Reason.BAD_USER_NAME_OR_PASSWORD),
            (None, None, Reason.NOT_AUTHORIZED),
        ):
            with framed_wire(broker.ports["http"], "x", MQTT_5) as wire:
                wire.send(Connect("x", version=MQTT_5, username=user, password=password))
                assert wire.expect(Connack).reason == reason


def test_a_client_that_never_says_connect_is_let_go(tmp_path: Path) -> None:
    with Hosted(tmp_path, mqtt__connect_timeout="1s") as broker:
        socket = open_websocket(broker.ports["http"], "/mqtt", "mqtt")
        with pytest.raises(ConnectionClosed):
            socket.recv(WAIT_S)


def test_a_frame_larger_than_any_packet_is_refused(broker: Hosted) -> None:
    socket = open_websocket(broker.ports["http"], "/mqtt", "mqtt")
    with pytest.raises(ConnectionClosed):
        socket.send(b"\0" * (17 << 20))
        socket.recv(WAIT_S)
    assert socket.protocol.close_code == 1009


def test_a_frame_without_a_mask_is_refused(broker: Hosted) -> None:
    with Asking(broker.ports["http"]) as client:
        answer = client.ask(
            "GET",
            "/mqtt",
            Upgrade="websocket",
            Connection="Upgrade",
            Sec_WebSocket_Protocol="mqtt",
            Sec_WebSocket_Version="13",
            Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA==",
        )
        assert answer.status == 101
        client.send(b"\x82\x01a")
        assert client.rest()[:4] == b"\x88" + client_close_length(1002)


def client_close_length(code: int) -> bytes:
    """Length and code of the close frame for a frame that is not masked."""
    reason = b"incorrect masking"
    return bytes((2 + len(reason),)) + code.to_bytes(2, "big")


def test_a_reader_that_does_not_read_holds_a_bounded_amount(broker: Hosted, name: str) -> None:
    """Its socket is full, then what the HTTP side holds, then what the MQTT side holds."""
    with (
        framed_wire(broker.ports["http"], f"{name}-slow", MQTT_3_1_1) as slow,
        Wire(broker.port, name) as fast,
    ):
        slow.connect()
        slow.subscribe(f"{name}/#", qos=0)
        fast.connect()
        dropped = broker.dropped["queue_full"]
        payload = b"x" * 500_000
        for _ in range(80):
            fast.publish(f"{name}/x", payload, 0)
        fast.publish(f"{name}/x", payload, 1)
        held = [c.out_bytes for c in broker.call(lambda: list(broker.http._connections))]
        assert max(held) < 2_000_000
        assert broker.dropped["queue_full"] > dropped
        slow.pick(Publish)


def test_clients_are_told_when_the_server_stops(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker:
        wire = framed_wire(broker.ports["http"], "x", MQTT_5)
        wire.connect()
    assert wire.expect(Disconnect).reason == Reason.SERVER_SHUTTING_DOWN
    assert wire.is_closed()


def test_a_session_moves_between_tcp_and_websocket(broker: Hosted, name: str) -> None:
    with framed_wire(broker.ports["http"], name, MQTT_3_1_1) as wire:
        wire.connect(clean=False)
        wire.subscribe(f"{name}/#", qos=1)
    with Wire(broker.port, f"{name}-2") as other:
        other.connect()
        other.publish(f"{name}/x", b"meanwhile", 1)
    with Wire(broker.port, name) as wire:
        assert wire.connect(clean=False).session_present
        assert wire.pick(Publish).payload == b"meanwhile"
