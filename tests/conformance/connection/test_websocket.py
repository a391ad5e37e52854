"""MQTT over WebSocket: frames, and the name of the subprotocol."""

from __future__ import annotations

from typing import Any, cast

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from penstock.mqtt.packets import Publish
from tests.conformance import spelled
from tests.conformance.talk import BOTH, Talk
from tests.doors.hosted import Hosted
from tests.doors.wire import WAIT_S
from tests.http.framed import Framed


def opened(broker: Hosted, *offered: str) -> ClientConnection:
    """A WebSocket that offers these subprotocols; whoever asked for it closes it."""
    return connect(
        f"ws://127.0.0.1:{broker.ports['http']}/mqtt",
        subprotocols=[Subprotocol(one) for one in offered] or None,
        compression=None,
        proxy=None,
        open_timeout=WAIT_S,
    )


@pytest.mark.parametrize(
    "offered", [("mqtt",), ("mqtt", "mqttv3.1"), ("other", "mqttv3.1", "mqtt")]
)
def test_subprotocol_chosen_is_mqtt(broker: Hosted, offered: tuple[str, ...]) -> None:
    """Is it `mqtt` that the broker returns, whatever else is offered and in which order?"""
    with opened(broker, *offered) as socket:
        assert socket.subprotocol == "mqtt"


@pytest.mark.parametrize("offered", [(), ("chat",), ("MQTT",)])
def test_client_must_offer_mqtt(broker: Hosted, offered: tuple[str, ...]) -> None:
    """Is a client that does not offer it refused before there is a WebSocket?"""
    with pytest.raises(InvalidStatus):
        opened(broker, *offered)


@BOTH
def test_frame_that_is_not_binary_closes(broker: Hosted, name: str, version: int) -> None:
    """Are all frames of the broker binary, and is a text frame the end of the connection?"""
    with opened(broker, "mqtt") as socket:
        socket.send(spelled.connect(version, name))
        assert isinstance(socket.recv(WAIT_S), bytes)
        socket.send("\x30\x00")
        with pytest.raises(ConnectionClosed):
            while True:
                assert isinstance(socket.recv(WAIT_S), bytes)


@BOTH
@pytest.mark.parametrize("cut", [1, 5, None])
def test_packets_lie_in_frames_as_they_come(
    broker: Hosted, name: str, version: int, cut: int | None
) -> None:
    """Does it not matter how packets are cut into frames, or how many share one?"""
    framed = Framed(broker.ports["http"], cut)
    with Talk(0, name, version, cast(Any, framed)) as client:
        client.send_bytes(
            spelled.connect(version, name)
            + spelled.subscribe(version, 1, (name, 1))
            + spelled.publish(version, name, b"one", flags=spelled.QOS_1, packet_id=2)
            + spelled.publish(version, name, b"two")
            + b"\xc0\x00"
        )
        got = {client.pick(Publish).payload for _ in range(2)}
        assert got == {b"one", b"two"}
