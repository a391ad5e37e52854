"""Does a bridge of ours carry messages between two brokers, each once, and say how it is doing?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Puback, Publish
from penstock.mqtt.properties import Properties
from tests.bridges.bridged import (
    BOTH_WAYS,
    bridge_file,
    bridge_of,
    hosted,
    publish,
    reader,
    taken,
    wait_away,
    wait_connected,
)
from tests.doors.certificates import Authority
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Asking
from tests.waiting import wait_until


class Pair(NamedTuple):
    """`near` has the bridge, which its file declares; `far` is the other broker."""

    near: Hosted
    far: Hosted
    data: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("pair")
    prefixed = """
[[bridges.topics]]
filter = "temp/+"
local_prefix = "hall/"
remote_prefix = "site1/hall/"

[[bridges.topics]]
filter = "orders/#"
direction = "in"
local_prefix = "from-site/"
"""
    with hosted(directory, "far") as far:
        config = bridge_file(directory, f"mqtt://127.0.0.1:{far.port}", BOTH_WAYS + prefixed)
        with hosted(directory, "near", config) as near:
            wait_connected(near.ports["http"])
            yield Pair(near, far, directory / "near")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_pass_both_ways_once_each_and_none_goes_in_a_circle(pair: Pair, qos: int) -> None:
    near, far = pair.near.port, pair.far.port
    with reader(near, "#") as here, reader(far, "#") as there:
        # Two entries have QoS 1: a bridge lowers the QoS, as a subscription does.
        lowered = min(qos, 1)
        publish(near, "up/a", b"up", qos)
        assert taken(here) == ("up/a", b"up", qos)
        assert taken(there) == ("up/a", b"up", lowered)
        publish(far, "down/a", b"down", qos)
        assert taken(there) == ("down/a", b"down", qos)
        assert taken(here) == ("down/a", b"down", lowered)
        for port in (near, far):
            publish(port, "both/a", b"both", qos)
            assert taken(here) == taken(there) == ("both/a", b"both", qos)
        publish(near, "up/last", b"", qos)
        publish(far, "down/last", b"", qos)
        assert {taken(here)[0] for _ in range(2)} == {"up/last", "down/last"}
        assert {taken(there)[0] for _ in range(2)} == {"up/last", "down/last"}


def test_names_get_the_prefix_of_the_other_side(pair: Pair) -> None:
    near, far = pair.near.port, pair.far.port
    with reader(near, "from-site/#") as here, reader(far, "site1/#") as there:
        publish(near, "hall/temp/1", b"21")
        assert taken(there) == ("site1/hall/temp/1", b"21", 1)
        publish(near, "hall/temp/1/raw", b"not carried")
        publish(near, "hall/temp/2", b"22")
        assert taken(there) == ("site1/hall/temp/2", b"22", 1)
        publish(far, "orders/eu/7", b"x")
        assert taken(here) == ("from-site/orders/eu/7", b"x", 1)


def test_retained_messages_stay_retained_and_properties_are_kept(pair: Pair) -> None:
    near, far = pair.near.port, pair.far.port
    properties = Properties(
        content_type="text/plain",
        correlation_data=b"7",
        user_properties=(("traceparent", "00-1-2-01"),),
    )
    with reader(far, "up/kept") as there, Wire(near, "sender", MQTT_5) as sender:
        sender.connect()
        sender.send(Publish("up/kept", b"x", 1, True, packet_id=1, properties=properties))
        sender.pick(Puback)
        message = there.receive()
        assert message.properties == properties
    with reader(far, "up/kept") as late:
        assert late.receive().retain


def test_a_bridge_is_shown_with_its_counts(pair: Pair) -> None:
    publish(pair.near.port, "up/counted", b"1")
    publish(pair.far.port, "down/counted", b"1")
    wait_until(lambda: bridge_of(pair.near.ports["http"])["lag"] == 0)
    with reader(pair.near.port, "down/counted2"):
        shown = bridge_of(pair.near.ports["http"])
    assert shown["name"] == "plant" and shown["error"] == ""
    assert shown["forwarded"] >= 1 and shown["received"] >= 1 and shown["refused"] == 0
    with Asking(pair.near.ports["http"]) as client:
        text = client.ask("GET", "/metrics").body.decode()
    assert 'penstock_bridge_connections{bridge="plant"} 1' in text
    for name in ("forwarded", "received", "refused"):
        assert f'penstock_bridge_{name}_messages_total{{bridge="plant"}}' in text
    command = [sys.executable, "-m", "penstock.cli.main", "bridge", "list", "--at", str(pair.data)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "plant" in listed and "connected" in listed


def test_what_is_published_while_the_other_broker_is_away_is_forwarded_later(
    tmp_path: Path,
) -> None:
    """Also what was published before the first connection, and before a restart of ours."""
    with hosted(tmp_path, "far") as far:
        port = far.port
        with reader(port, "up/#", client_id="keeps"):
            pass
    config = bridge_file(tmp_path, f"mqtt://127.0.0.1:{port}")
    with hosted(tmp_path, "near", config) as near:
        publish(near.port, "up/1", b"before the first connection")
        http_port = near.ports["http"]
        wait_until(lambda: "Connection refused" in bridge_of(http_port)["error"])
        assert bridge_of(http_port)["lag"] >= 1
    with hosted(tmp_path, "near", config) as near:
        publish(near.port, "up/2", b"after a restart")
        with (
            Hosted(tmp_path / "far", mqtt__listen=f"127.0.0.1:{port}") as far,
            reader(far.port, "up/#") as there,
        ):
            assert taken(there)[1] == b"before the first connection"
            assert taken(there)[1] == b"after a restart"
            wait_connected(near.ports["http"])  # it forwards before it has subscribed
            publish(far.port, "down/1", b"down")
            with reader(near.port, "down/#") as here:
                publish(far.port, "down/2", b"down")
                assert taken(here)[0] in ("down/1", "down/2")
        wait_away(near.ports["http"])
        publish(near.port, "up/3", b"while it was away again", 2)
        with (
            Hosted(tmp_path / "far", mqtt__listen=f"127.0.0.1:{port}") as far,
            reader(far.port, "up/#") as there,
        ):
            assert taken(there)[1] == b"while it was away again"


def test_what_the_other_broker_gets_while_we_are_away_is_received_later(tmp_path: Path) -> None:
    with hosted(tmp_path, "far") as far:
        config = bridge_file(tmp_path, f"mqtt://127.0.0.1:{far.port}")
        with hosted(tmp_path, "near", config) as near:
            wait_connected(near.ports["http"])
        publish(far.port, "down/1", b"while we were away")
        publish(far.port, "both/1", b"exactly once", 2)
        with hosted(tmp_path, "near", config) as near, Asking(near.ports["http"]) as client:
            wait_until(lambda: bridge_of(near.ports["http"])["received"] == 2)
            page = client.ask("GET", "/v1/topics/default/records").json
            assert [one["name"] for one in page["records"]] == ["down/1", "both/1"]


def test_a_bridge_speaks_tls_and_logs_in(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("server")
    own_cert, own_key = authority.sign("plant")
    password = tmp_path / "password"
    password.write_text("secret\n")
    add_users(tmp_path / "far", plant="secret")
    tls = {
        "mqtt__tls_listen": "127.0.0.1:0",
        "mqtt__tls_cert": str(cert),
        "mqtt__tls_key": str(key),
    }
    with hosted(tmp_path, "far", **tls, mqtt__tls_client_ca=str(authority.cert)) as far:
        address = f"mqtts://localhost:{far.ports['mqtts']}"
        for keys in (
            {"user": "plant", "password_file": password},
            {"tls_cert": own_cert, "tls_key": own_key},
        ):
            config = bridge_file(tmp_path, address, tls_ca=authority.cert, **keys)
            with hosted(tmp_path, f"near-{len(keys)}", config) as near:
                wait_connected(near.ports["http"])
                publish(near.port, "up/a", b"x")
                wait_until(lambda one=near: bridge_of(one.ports["http"])["forwarded"] == 1)
        password.write_text("wrong")
        config = bridge_file(
            tmp_path, address, tls_ca=authority.cert, user="plant", password_file=password
        )
        with hosted(tmp_path, "near-wrong", config) as near:
            wait_until(lambda: "rejected" in bridge_of(near.ports["http"])["error"])
        config = bridge_file(tmp_path, address, user="plant", password_file=password)
        with hosted(tmp_path, "near-untrusting", config) as near:
            wait_until(lambda: "set tls_ca" in bridge_of(near.ports["http"])["error"])


def test_a_bridge_may_do_what_its_role_allows(tmp_path: Path) -> None:
    role = """
[[roles]]
name = "only-up"
rules = ["allow subscribe,receive up/#", "allow publish down/allowed"]
"""
    with hosted(tmp_path, "far") as far:
        address = f"mqtt://127.0.0.1:{far.port}"
        config = bridge_file(tmp_path, address, BOTH_WAYS + role, role="only-up")
        with hosted(tmp_path, "near", config) as near:
            wait_connected(near.ports["http"])
            assert "both/#" in bridge_of(near.ports["http"])["error"]
            with reader(near.port, "down/#") as here, reader(far.port, "up/#") as there:
                publish(near.port, "up/a", b"x")
                assert taken(there)[0] == "up/a"
                publish(far.port, "down/denied", b"x")
                publish(far.port, "down/allowed", b"x")
                assert taken(here)[0] == "down/allowed"
            assert bridge_of(near.ports["http"])["refused"] == 1
            near.call(lambda: near.exchange.engine.access.roles.check("only-up"))
        config = bridge_file(tmp_path, address, role="nobody-has-this")
        with hosted(tmp_path, "near2", config) as near:
            wait_until(lambda: "nobody-has-this" in bridge_of(near.ports["http"])["error"])


def test_nobody_else_may_have_the_session_of_a_bridge(tmp_path: Path) -> None:
    config = bridge_file(tmp_path, "mqtt://127.0.0.1:1")
    with hosted(tmp_path, "near", config) as near, Wire(near.port, "bridge:plant", MQTT_5) as wire:
        answer = wire.connect(clean=False)
        assert answer.reason and "belongs to another user" in (
            answer.properties.reason_string or ""
        )


def test_a_bridge_is_logged_when_it_connects_and_why_it_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    password = tmp_path / "password"
    password.write_text("hunter2")
    with caplog.at_level("INFO", "penstock.bridge"), hosted(tmp_path, "far") as far:
        address = f"mqtt://127.0.0.1:{far.port}"
        config = bridge_file(tmp_path, address, user="plant", password_file=password)
        with hosted(tmp_path, "near", config) as near:
            wait_connected(near.ports["http"])
            publish(near.port, "up/a", b"a payload", 1)
    said = [(one.levelname, one.getMessage()) for one in caplog.records]
    assert ("INFO", f"bridge plant connected to {address}") in said
    with caplog.at_level("INFO", "penstock.bridge"), hosted(tmp_path, "near", config) as near:
        wait_until(lambda: bridge_of(near.ports["http"])["error"])
    last = [one for one in caplog.records if one.name == "penstock.bridge"][-1]
    level, text = last.levelname, last.getMessage()
    assert level == "WARNING" and text.startswith("bridge plant cannot connect: cannot connect to")
    everything = " ".join(one.getMessage() for one in caplog.records)
    assert "hunter2" not in everything and "a payload" not in everything


def test_a_removed_filter_is_no_longer_forwarded(tmp_path: Path) -> None:
    with hosted(tmp_path, "far") as far, reader(far.port, "#") as there:
        address = f"mqtt://127.0.0.1:{far.port}"
        with hosted(tmp_path, "near", bridge_file(tmp_path, address)) as near:
            wait_connected(near.ports["http"])
        fewer = '\n[[bridges.topics]]\nfilter = "both/#"\n'
        with hosted(tmp_path, "near", bridge_file(tmp_path, address, fewer)) as near:
            wait_connected(near.ports["http"])
            publish(near.port, "up/a", b"not forwarded")
            publish(far.port, "down/a", b"not stored")
            assert taken(there)[0] == "down/a"
            publish(near.port, "both/a", b"forwarded")
            assert taken(there)[0] == "both/a"
            with Asking(near.ports["http"]) as client:
                page = client.ask("GET", "/v1/topics/default/records").json
            assert [one["name"] for one in page["records"]] == ["up/a", "both/a"]


def test_a_clean_bridge_forwards_only_what_comes_while_it_is_connected(tmp_path: Path) -> None:
    with hosted(tmp_path, "far") as far:
        port = far.port
        config = bridge_file(tmp_path, f"mqtt://127.0.0.1:{port}", clean_start=True)
        with hosted(tmp_path, "near", config) as near:
            wait_connected(near.ports["http"])
        assert far.call(lambda: dict(far.exchange.store.stored)) == {}
        with hosted(tmp_path, "near", config) as near, reader(port, "up/#") as there:
            wait_connected(near.ports["http"])
            publish(near.port, "up/a", b"now")
            assert taken(there)[1] == b"now"
            assert near.call(lambda: dict(near.exchange.store.stored)) == {}
