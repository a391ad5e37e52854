"""`/v1/sessions`: who is there, what each has waiting, and sending a client away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from penstock.broker.session import waiting as tally
from penstock.catalog.session.stored_sessions import OutstandingRow
from penstock.mqtt.kinds import MQTT_3_1_1, MQTT_5
from penstock.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.doors.wire import Wire, kept
from tests.http.access.test_http_access import basic
from tests.http.asking import Asking


def show(client: Asking, client_id: str) -> dict[str, Any]:
    answer = client.ask("GET", f"/v1/sessions/{quote(client_id, safe='')}")
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json
    return found


def leave_session(broker: Hosted, client_id: str, *filters: tuple[str, int]) -> None:
    """A session that outlives its client, which has gone."""
    with Wire(broker.port, client_id) as wire:
        wire.connect(clean=False)
        for filter, qos in filters:
            wire.subscribe(filter, qos=qos)
        wire.disconnect()
    broker.wait_idle()


def publish(broker: Hosted, *names: str, qos: int = 1) -> None:
    with Wire(broker.port, "publisher") as wire:
        wire.connect()
        for name in names:
            wire.publish(name, b"x", qos)
        if not qos:
            wire.publish("settled", b"", 1)


def test_a_connected_client_is_shown_with_its_filters(
    broker: Hosted, client: Asking, name: str
) -> None:
    with Wire(broker.port, name, MQTT_5) as wire:
        wire.connect(properties=kept(100))
        wire.subscribe(f"{name}/#", qos=1)
        wire.subscribe("other/+", qos=0)
        assert show(client, name) == {
            "client_id": name,
            "user": "",
            "is_connected": True,
            "subscriptions": 2,
            "outstanding": 0,
            "waiting": 0,
            "is_exact": True,
            "expiry_s": 100,
            "filters": [{"filter": f"{name}/#", "qos": 1}, {"filter": "other/+", "qos": 0}],
        }


def test_what_waits_for_a_client_that_is_away_is_counted(
    broker: Hosted, client: Asking, name: str
) -> None:
    publish(broker, f"{name}/before")
    leave_session(broker, name, (f"{name}/a", 1), (f"{name}/+", 2), (f"{name}/zero/#", 0))
    assert show(client, name)["waiting"] == 0
    publish(broker, f"{name}/a", f"{name}/b", f"{name}/b", f"{name}/deep/er", f"{name}/zero/x")
    publish(broker, f"{name}/a", qos=0)  # not kept for who is away
    found = show(client, name)
    assert (found["waiting"], found["is_exact"], found["is_connected"]) == (3, True, False)
    with Wire(broker.port, name) as wire:
        wire.connect(clean=False)
        assert [wire.receive().name for _ in range(3)] == [f"{name}/a", f"{name}/b", f"{name}/b"]
        assert wire.settle() == []
        assert show(client, name)["waiting"] == 0


def test_a_filter_counts_from_when_it_was_made(broker: Hosted, client: Asking, name: str) -> None:
    leave_session(broker, name, (f"{name}/early", 1))
    publish(broker, f"{name}/early", f"{name}/late")
    with Wire(broker.port, name) as wire:
        wire.connect(clean=False)
        wire.receive()
        wire.subscribe_later(f"{name}/late", 1)
        wire.settle()
        wire.disconnect()
    broker.wait_idle()
    publish(broker, f"{name}/late", f"{name}/early")
    assert show(client, name)["waiting"] == 2


def busy(broker: Hosted, name: str) -> Wire:
    """A client that takes one message at a time, and has not acknowledged the first."""
    wire = Wire(broker.port, name, MQTT_5)
    wire.connect(properties=Properties(receive_maximum=1, session_expiry_interval=100))
    wire.subscribe(f"{name}/first", qos=1)
    publish(broker, f"{name}/first", f"{name}/first")
    wire.pick(Publish)
    return wire


def test_what_came_before_a_filter_does_not_wait_for_it_even_if_its_client_lags(
    broker: Hosted, client: Asking, name: str
) -> None:
    with busy(broker, name) as wire:
        publish(broker, f"{name}/late")
        wire.subscribe(f"{name}/late", qos=1)
        assert show(client, name)["waiting"] == 1
        publish(broker, f"{name}/late")
        assert show(client, name)["waiting"] == 2


def test_what_a_client_published_does_not_wait_for_its_no_local_filters(
    broker: Hosted, client: Asking, name: str
) -> None:
    with busy(broker, name) as wire:
        wire.subscribe(Subscription(f"{name}/+", 1, no_local=True))
        publish(broker, f"{name}/x")
        wire.publish(f"{name}/x", b"mine", 1)
        wire.publish(f"{name}/first", b"mine, and there is another filter", 1)
        assert show(client, name)["waiting"] == 3


def test_what_was_out_when_the_broker_crashed_is_not_waiting_as_well(
    broker: Hosted, client: Asking, name: str
) -> None:
    """At QoS 2 it is written down before it leaves; the position may be older."""
    leave_session(broker, name, (f"{name}/#", 2))
    publish(broker, f"{name}/a", f"{name}/b", qos=2)
    (topic,) = broker.exchange.engine.topics.all()
    rows = [OutstandingRow(topic.id, topic.log.bounds().end - 2, 7, 2, False)]
    catalog = broker.exchange.engine.session_catalog
    broker.run(lambda server: catalog.put_outstanding(name, rows))
    found = show(client, name)
    assert (found["outstanding"], found["waiting"]) == (1, 1)
    with Wire(broker.port, name) as wire:
        wire.connect(clean=False)
        first, second = wire.expect(Publish), wire.expect(Publish)
        assert [(one.name, one.dup) for one in (first, second)] == [
            (f"{name}/a", True),
            (f"{name}/b", False),
        ]


def test_what_is_out_and_what_lies_behind_it_are_told_apart(
    broker: Hosted, client: Asking, name: str
) -> None:
    with Wire(broker.port, name, MQTT_5) as wire:
        wire.connect(properties=Properties(receive_maximum=3, session_expiry_interval=100))
        wire.subscribe(f"{name}/#", qos=1)
        publish(broker, *[f"{name}/{at}" for at in range(10)])
        for _ in range(3):
            wire.pick(Publish)
        found = show(client, name)
        assert (found["outstanding"], found["waiting"]) == (3, 7)


def test_what_waits_still_waits_when_its_filter_is_replaced_at_qos_0(
    broker: Hosted, client: Asking, name: str
) -> None:
    with busy(broker, name) as wire:
        before = show(client, name)["waiting"]
        publish(broker, *[f"{name}/x"] * 3)
        assert show(client, name)["waiting"] == before
        wire.subscribe(f"{name}/x", qos=1)
        publish(broker, *[f"{name}/x"] * 3)
        assert show(client, name)["waiting"] == before + 3
        wire.subscribe(f"{name}/x", qos=0)
        assert show(client, name)["waiting"] == before + 3
        publish(broker, f"{name}/x")  # in its order, behind them
        assert show(client, name)["waiting"] == before + 4


def test_a_subscription_with_history_and_a_filter_counts_what_passes(
    broker: Hosted, client: Asking, name: str
) -> None:
    asked = Properties(user_properties=(("from", "latest"), ("where", "payload = 'yes'")))
    with Wire(broker.port, name, MQTT_5) as wire:
        wire.connect(clean=False, properties=kept())
        wire.send(Subscribe(1, (Subscription(f"{name}/#", 1),), properties=asked))
        wire.expect(Suback)
        wire.disconnect()
    broker.wait_idle()
    with Wire(broker.port, "publisher") as wire:
        wire.connect()
        for payload in (b"yes", b"no", b"yes"):
            wire.publish(f"{name}/x", payload, 1)
    assert show(client, name)["waiting"] == 2


def test_sessions_are_listed_page_by_page(broker: Hosted, client: Asking, name: str) -> None:
    ids = [f"{name}-{at}" for at in range(5)]
    for client_id in ids:
        leave_session(broker, client_id, ("x/#", 1))
    listed: list[str] = []
    after = ""
    while True:
        page = client.ask("GET", f"/v1/sessions?limit=2&after={quote(after)}").json
        assert len(page["sessions"]) <= 2
        listed += [one["client_id"] for one in page["sessions"]]
        if page["after"] is None:
            break
        after = page["after"]
    assert sorted(listed) == listed and set(ids) <= set(listed)


def test_a_count_of_too_much_is_a_lower_bound_and_says_so(
    broker: Hosted, client: Asking, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_session(broker, name, (f"{name}/#", 1))
    publish(broker, *[f"{name}/x"] * 5)
    monkeypatch.setattr(tally, "SCAN_BYTES_MAX", -1)
    found = show(client, name)
    assert (found["waiting"], found["is_exact"]) == (0, False)


def test_a_kicked_client_is_told_why_and_may_come_back_to_its_session(
    broker: Hosted, client: Asking, name: str
) -> None:
    with Wire(broker.port, name, MQTT_5) as wire:
        wire.connect(properties=kept())
        wire.subscribe(f"{name}/#", qos=1)
        answer = client.ask("POST", f"/v1/sessions/{name}/kick")
        assert answer.json == {"client_id": name, "was_connected": True, "forgotten": False}
        end = wire.expect(Disconnect)
        assert end.reason == Reason.ADMINISTRATIVE_ACTION
        assert "an administrator closed" in (end.properties.reason_string or "")
        assert wire.is_closed()
    publish(broker, f"{name}/x")
    with Wire(broker.port, name, MQTT_5) as wire:
        assert wire.connect(clean=False, properties=kept()).session_present
        assert wire.receive().name == f"{name}/x"


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_forgotten_session_is_gone(
    broker: Hosted, client: Asking, name: str, is_connected: bool
) -> None:
    wire = Wire(broker.port, name)
    wire.connect(clean=False)
    wire.subscribe(f"{name}/#", qos=1)
    if not is_connected:
        wire.disconnect()
        broker.wait_idle()
    answer = client.ask("POST", f"/v1/sessions/{name}/kick", {"forget": True})
    assert answer.json["was_connected"] is is_connected
    broker.wait_idle()
    assert client.ask("GET", f"/v1/sessions/{name}").status == 404
    with Wire(broker.port, name) as wire:
        assert not wire.connect(clean=False).session_present


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_forgotten_session_holds_nothing_of_its_share_any_more(
    broker: Hosted, client: Asking, name: str, is_connected: bool
) -> None:
    """What was out at QoS 2 was its alone (MQTT 5 §4.8.2); a share that nobody holds is gone."""
    shares = broker.exchange.store.shares
    before = len(shares)
    with Wire(broker.port, name) as wire:
        wire.connect(clean=False)
        wire.subscribe(f"$share/workers/{name}/#", qos=2)
        publish(broker, f"{name}/job", qos=2)
        wire.expect(Publish)
        if not is_connected:
            wire.disconnect()
            broker.wait_idle()
        assert show(client, name)["outstanding"] == 1 and len(shares) == before + 1
        dropped = broker.dropped["session_ended"]
        client.ask("POST", f"/v1/sessions/{name}/kick", {"forget": True})
        broker.wait_idle()
        assert (len(shares), broker.dropped["session_ended"]) == (before, dropped + 1)


def test_a_client_that_is_just_connecting_is_not_forgotten_under_its_feet(
    broker: Hosted, client: Asking, name: str
) -> None:
    leave_session(broker, name, ("x/#", 1))
    catalog = broker.exchange.engine.session_catalog
    broker.run(lambda server: catalog.begin(name, "", 100, is_clean=False))  # and not told yet
    answer = client.ask("POST", f"/v1/sessions/{name}/kick", {"forget": True})
    assert answer.status == 503 and "try again" in answer.detail
    assert show(client, name)["subscriptions"] == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.ask("GET", "/v1/sessions/nobody"),
        lambda client: client.ask("POST", "/v1/sessions/nobody/kick"),
    ],
)
def test_who_is_not_there_is_404(client: Asking, ask: Callable[[Asking], Any]) -> None:
    assert "no client 'nobody'" in ask(client).detail


def test_client_ids_may_hold_any_letter(broker: Hosted, client: Asking) -> None:
    for client_id in ("a/b", "ü ?&", "100%"):
        with Wire(broker.port, client_id) as wire:
            wire.connect()
            assert show(client, client_id)["client_id"] == client_id


def test_the_user_of_a_session_is_shown(tmp_path: Path) -> None:
    add_users(tmp_path, alice="wonder")
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        with Wire(broker.port, "hers", MQTT_5) as wire:
            wire.send(Connect("hers", username="alice", password=b"wonder", version=MQTT_5))
            wire.expect(Connack)
            login = basic("alice", "wonder")
            answer = client.ask("GET", "/v1/sessions/hers", Authorization=login)
            assert answer.json["user"] == "alice"
        assert client.ask("GET", "/v1/sessions").status == 401


def test_after_a_kill_everybody_is_away_and_what_waits_is_known(tmp_path: Path) -> None:
    broker = Served(tmp_path / "data").start()
    with Wire(broker.port, "reader", MQTT_3_1_1) as wire, Wire(broker.port, "writer") as other:
        wire.connect(clean=False)
        wire.subscribe("t/#", qos=1)
        wire.disconnect()
        other.connect()
        for _ in range(5):
            other.publish("t/x", b"", 1)
        broker.kill()
    with broker, Asking(broker.http_port) as client:
        found = show(client, "reader")
        assert (found["is_connected"], found["waiting"]) == (False, 5)
