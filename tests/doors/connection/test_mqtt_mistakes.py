"""A mistake of our own: does it cost its client the connection, and nobody else anything?

Each test makes the broker stumble over one client, wherever that client's bytes are looked at.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from penstock.doors.tls.link import TlsLink
from penstock.model.limits import MIB
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connect, Pingreq, Publish, Unsubscribe
from tests.doors.certificates import Authority
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, kept
from tests.http.framed import Framed


class EveryWayIn:
    """A broker with every way in, and somebody connected who must not notice anything."""

    def __init__(self, broker: Hosted, authority: Authority) -> None:
        self.broker = broker
        self._context = ssl.create_default_context(cafile=str(authority.cert))

    def wire(self, way: str, client_id: str) -> Wire:
        if way == "tcp":
            return Wire(self.broker.port, client_id, MQTT_5)
        if way == "websocket":
            return Wire(0, client_id, MQTT_5, cast(Any, Framed(self.broker.ports["http"])))
        wire = Wire(self.broker.ports["mqtts"], client_id, MQTT_5)
        wire._socket = self._context.wrap_socket(wire._socket, server_hostname="localhost")
        return wire


WAYS = pytest.mark.parametrize("way", ["tcp", "tls", "websocket"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EveryWayIn]:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    cert, key = authority.sign("server")
    files = {"mqtt__tls_cert": str(cert), "mqtt__tls_key": str(key)}
    data = tmp_path_factory.mktemp("data")
    with Hosted(data, mqtt__tls_listen="127.0.0.1:0", **files) as broker:
        yield EveryWayIn(broker, authority)


@pytest.fixture
def witness(world: EveryWayIn) -> Iterator[Wire]:
    """Connected before and after; what the broker reported in between is one mistake, once."""
    with Wire(world.broker.port, "witness", MQTT_5) as witness:
        witness.connect()
        witness.subscribe("witness", qos=1)
        yield witness
        witness.publish("witness", b"still here", 1)
        assert witness.receive().payload == b"still here"
    (trouble,) = world.broker.troubles
    assert "a mistake" in trouble
    world.broker.troubles.clear()


def stumbling(call: Callable[..., Any], is_trap: Callable[..., bool]) -> Callable[..., Any]:
    """As `call`, but with a mistake in it that only shows when `is_trap` says so."""

    def stumble(*arguments: Any, **more: Any) -> Any:
        if is_trap(*arguments):
            raise RuntimeError("a mistake")
        return call(*arguments, **more)

    return stumble


def wait_closed(wire: Wire) -> None:
    while not wire.is_closed():
        pass


@WAYS
def test_mistake_while_a_packet_is_handled(world: EveryWayIn, witness: Wire, way: str) -> None:
    handlers = cast(dict[Any, Any], world.broker.door._handlers)
    known = handlers[Unsubscribe]
    handlers[Unsubscribe] = stumbling(known, lambda connection, packet: True)
    with world.wire(way, "trapped") as trapped:
        trapped.connect()
        trapped.send(Unsubscribe(1, ("a",)), Pingreq())
        wait_closed(trapped)
    handlers[Unsubscribe] = known


@WAYS
def test_mistake_in_what_goes_on_in_the_background(
    world: EveryWayIn, witness: Wire, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    retained = world.broker.exchange.store.retained
    stumble = stumbling(retained.matching, lambda filter: filter == "trap")
    monkeypatch.setattr(retained, "matching", stumble)
    with world.wire(way, "trapped") as trapped:
        trapped.connect()
        trapped.subscribe_later("trap")
        wait_closed(trapped)
    witness.subscribe("fine")


@WAYS
def test_mistake_while_a_session_is_loaded(
    world: EveryWayIn, witness: Wire, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.broker.exchange.store
    stumble = stumbling(store.begin, lambda session: session.client_id == "trapped")
    monkeypatch.setattr(store, "begin", stumble)
    with world.wire(way, "trapped") as trapped:
        trapped.send(Connect("trapped", False, version=MQTT_5, properties=kept()))
        wait_closed(trapped)
    with world.wire(way, "fine") as fine:
        fine.connect(clean=False, properties=kept())


@WAYS
def test_mistake_while_a_client_goes(
    world: EveryWayIn, witness: Wire, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.broker.exchange.store
    stumble = stumbling(store.end, lambda session: session.client_id == f"gone {way}")
    monkeypatch.setattr(store, "end", stumble)
    with world.wire(way, f"gone {way}") as trapped:
        trapped.connect(clean=False, properties=kept())
    while not world.broker.troubles:
        witness.settle()
    assert len(world.broker.troubles) == 1


def test_mistake_when_a_transport_takes_more(
    world: EveryWayIn, witness: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of TLS lets much wait, then reads on: is what goes wrong then its own loss?"""
    armed: set[TlsLink] = set()
    send = TlsLink.send
    monkeypatch.setattr(TlsLink, "send", stumbling(send, lambda link, data: link in armed))
    with world.wire("tls", "trapped") as trapped:
        trapped.connect()
        trapped.subscribe("much")
        for _ in range(40):
            witness.send(Publish("much", bytes(MIB // 4)))
        witness.settle()
        door = world.broker.door
        (stuck,) = world.broker.call(
            lambda: [one for one in door._connections if isinstance(one._link, TlsLink)]
        )
        assert world.broker.call(lambda: stuck._rest) is not None
        armed.add(cast(TlsLink, stuck._link))
        wait_closed(trapped)
        assert stuck.is_closed
