"""`/v1/traces`: does a trace tell where a message is, whichever way it goes?"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from penstock.broker.trace.trace import EVENTS_MAX, EVENTS_PER_S, Trace, TraceEvent
from penstock.broker.trace.tracer import TRACES_MAX
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect, Puback, Publish, Pubrec
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.publish.test_mqtt_disk import FULL, failing
from tests.doors.users import add_users
from tests.doors.wire import Wire, kept
from tests.http.asking import Asking
from tests.tenants.test_tenants_apart import Asker, Client, add_tenants
from tests.waiting import wait_until


@contextmanager
def traced(asking: Asking, **subject: Any) -> Iterator[str]:
    """The path of a trace that is on."""
    begun = asking.ask("POST", "/v1/traces", subject)
    assert begun.status == 201, begun.body
    path = f"/v1/traces/{begun.json['trace']}"
    yield path
    assert asking.ask("DELETE", path).status == 204


def seen(client: Asking, path: str, *expected: str) -> list[dict[str, Any]]:
    """The events of a trace, once all of these happened."""
    events: list[dict[str, Any]] = []

    def happened() -> bool:
        events[:] = client.ask("GET", path).json["events"]
        return {*expected} <= {f"{one['what']} {one.get('client', '')}".strip() for one in events}

    wait_until(happened)
    return events


def of(events: list[dict[str, Any]], what: str) -> dict[str, Any]:
    (found,) = [one for one in events if one["what"] == what]
    return found


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_is_followed_from_its_publisher_to_the_acknowledgement(
    broker: Hosted, client: Asking, name: str, qos: int
) -> None:
    reader_id, writer_id = f"{name}-r", f"{name}-w"
    with Wire(broker.port, reader_id) as reader, Wire(broker.port, writer_id) as writer:
        reader.connect()
        reader.subscribe(name, qos=qos)
        writer.connect()
        with traced(client, names=name) as path:
            writer.publish(name, b"1", qos)
            reader.receive()
            events = seen(client, path, f"acknowledged {reader_id}")
    assert [one["what"] for one in events] == ["received", "stored", "sent", "acknowledged"]
    received, stored, sent, acknowledged = events
    assert received["client"] == stored["client"] == writer_id
    assert sent["client"] == acknowledged["client"] == reader_id
    assert {one["offset"] for one in events} == {received["offset"]}
    assert {one["qos"] for one in events} == {qos}
    assert received["at"] <= stored["at"] <= sent["at"] <= acknowledged["at"]
    assert stored["detail"].startswith("synced in")


def test_a_message_of_qos_0_is_followed_without_an_acknowledgement(
    broker: Hosted, client: Asking, name: str
) -> None:
    with Wire(broker.port, f"{name}-r") as reader, Wire(broker.port, f"{name}-w") as writer:
        reader.connect()
        reader.subscribe(name)
        writer.connect()
        with traced(client, names=name) as path:
            writer.publish(name, b"1")
            reader.receive()
            events = seen(client, path, f"sent {name}-r", f"stored {name}-w")
    assert {one["what"] for one in events} == {"received", "stored", "sent"}
    assert "offset" not in of(events, "sent") and of(events, "sent")["qos"] == 0


def test_a_client_is_followed_as_publisher_and_as_reader_and_nobody_else(
    broker: Hosted, client: Asking, name: str
) -> None:
    with Wire(broker.port, name) as one, Wire(broker.port, f"{name}-other") as other:
        one.connect()
        other.connect()
        one.subscribe(f"{name}/in", qos=1)
        other.subscribe(f"{name}/out", qos=1)
        with traced(client, client=name) as path:
            one.publish(f"{name}/out", b"1", 1)
            other.receive()
            other.publish(f"{name}/in", b"2", 1)
            one.receive()
            events = seen(client, path, f"acknowledged {name}")
    told = [(event["what"], event["name"].rpartition("/")[2]) for event in events]
    assert told == [
        ("received", "out"),
        ("stored", "out"),
        ("sent", "in"),
        ("acknowledged", "in"),
    ]


def test_of_a_shared_subscription_the_member_is_shown_that_got_the_message(
    broker: Hosted, client: Asking, name: str
) -> None:
    with Wire(broker.port, f"{name}-1") as one, Wire(broker.port, f"{name}-2") as two:
        for wire in (one, two):
            wire.connect()
            wire.subscribe(f"$share/g/{name}", qos=1)
        with traced(client, names=name) as path:
            one.publish_all(name, 2, 1)
            for wire in (one, two):
                wire.acknowledge(wire.pick(Publish))
            events = seen(client, path, f"acknowledged {name}-1", f"acknowledged {name}-2")
    sent = sorted((one["client"], one["offset"]) for one in events if one["what"] == "sent")
    assert [client_id for client_id, _ in sent] == [f"{name}-1", f"{name}-2"]
    assert sent[0][1] != sent[1][1]


def test_a_message_waits_for_a_session_that_is_away_and_is_sent_when_it_is_back(
    broker: Hosted, client: Asking, name: str
) -> None:
    with Wire(broker.port, name, MQTT_5) as reader:
        reader.connect(properties=kept())
        reader.subscribe(name, qos=1)
        reader.disconnect()
    with Wire(broker.port, f"{name}-w") as writer, traced(client, names=name) as path:
        writer.connect()
        writer.publish(name, b"1", 1)
        events = seen(client, path, f"waiting {name}")
        assert "away" in of(events, "waiting")["detail"]
        with Wire(broker.port, name, MQTT_5) as reader:
            reader.connect(clean=False, properties=kept())
            message = reader.expect(Publish)
            seen(client, path, f"sent {name}")
        with Wire(broker.port, name, MQTT_5) as reader:
            reader.connect(clean=False, properties=kept())
            assert reader.receive().payload == message.payload
            events = seen(client, path, f"sent again {name}")
    assert len({one["offset"] for one in events}) == 1


def test_a_refused_publish_says_why(tmp_path: Path) -> None:
    add_users(tmp_path, boss="first", worker="second")
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as asking:
        boss, worker = login("boss", "first"), login("worker", "second")
        asking.ask("PUT", "/v1/topics/hr", {}, **boss)
        rule = {"rules": ["deny publish hr/#"], "user": "worker"}
        asking.ask("POST", "/v1/rules", rule, **boss)
        begun = asking.ask("POST", "/v1/traces", {"names": "hr/#"}, **boss).json
        with Wire(broker.port, "w", MQTT_5) as writer:
            writer.send(Connect("w", version=MQTT_5, username="worker", password=b"second"))
            writer.expect(Connack)
            writer.publish("hr/pay", b"1", 1)
        assert (
            asking.ask(
                "POST", "/v1/topics/hr/records", {"name": "hr/pay", "payload": 1}, **worker
            ).status
            == 403
        )
        path = f"/v1/traces/{begun['trace']}"
        events = asking.ask("GET", path, **boss).json["events"]
        assert [(one["what"], one["client"]) for one in events] == [
            ("refused", "w"),
            ("refused", "worker"),
        ]
        assert all("not" in one["detail"] for one in events)
        assert asking.ask("GET", "/v1/traces", **worker).status == 403
        assert asking.ask("GET", "/v1/topics/hr/records/0/trace", **worker).status == 403


def test_a_publish_over_http_that_exceeds_a_quota_says_why(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text("[quotas.user]\npublish_rate = 5\n")
    with (
        Hosted(tmp_path / "data", config=config) as broker,
        Asking(broker.ports["http"]) as asking,
        traced(asking, names="#") as path,
    ):
        asking.ask("PUT", "/v1/topics/t", {})
        messages = [{"payload": "x"}] * 1_000
        while asking.ask("POST", "/v1/topics/t/records", messages).status == 200:
            pass
        refused = seen(asking, path, "refused")[-1]
        assert (refused["what"], refused["count"]) == ("refused", 1_000)
        assert "QuotaExceeded" in refused["detail"]


def test_a_trace_shows_the_consumers_and_groups_that_read_a_message(
    client: Asking, name: str
) -> None:
    topic = f"/v1/topics/{name}"
    client.ask("PUT", topic, {})
    client.ask("PUT", f"{topic}/consumers/billing", {"from": "earliest"})
    with traced(client, names=name) as path:
        client.ask("POST", f"{topic}/records", {"payload": "1"})
        client.ask("POST", f"{topic}/consumers/billing/fetch", {})
        client.ask("POST", f"{topic}/groups/packers/fetch", {"limit": 1})
        events = seen(client, path, "read consumer billing", "read group packers")
    reads = [one for one in events if one["what"] == "read"]
    assert [(one["topic"], one["offset"]) for one in reads] == [(name, 0), (name, 0)]
    assert reads[1]["detail"] == "delivery 1"


def test_a_trace_shows_what_a_reader_of_a_group_answers(client: Asking, name: str) -> None:
    topic = f"/v1/topics/{name}"
    client.ask("PUT", topic, {})
    group = f"{topic}/groups/packers"
    with traced(client, names=f"{name}/#") as path:
        client.ask("POST", f"{topic}/records", [{"payload": "1"}, {"payload": "2"}])
        receipt = client.ask("POST", f"{group}/fetch", {"limit": 2}).json["receipt"]
        assert (
            client.ask("POST", f"{group}/ack", {"receipt": receipt, "offsets": [1]}).status == 200
        )
        refused = client.ask("POST", f"{group}/ack", {"receipt": receipt, "offsets": [1]})
        nack = {"receipt": receipt, "offsets": [0], "reason": "out of boxes"}
        assert client.ask("POST", f"{group}/nack", nack).status == 200
        events = seen(client, path, "acknowledged group packers", "given back group packers")
    assert refused.status == 409
    assert (of(events, "acknowledged")["offset"], of(events, "given back")["offset"]) == (1, 0)
    assert of(events, "given back")["detail"] == "out of boxes"


def test_a_trace_of_the_original_name_shows_that_a_group_gave_a_message_up_and_where_it_is(
    client: Asking, name: str
) -> None:
    topic = f"/v1/topics/{name}"
    client.ask("PUT", topic, {})
    group = f"{topic}/groups/packers"
    client.ask("PUT", group, {"deliveries_max": 1})
    with traced(client, names=f"{name}/#") as path:
        client.ask("POST", f"{topic}/records", {"payload": "1"})
        receipt = client.ask("POST", f"{group}/fetch", {"limit": 1}).json["receipt"]
        client.ask("POST", f"{group}/nack", {"receipt": receipt, "reason": "out of boxes"})
        events = seen(client, path, "given back group packers", "dropped group packers")
    dropped = of(events, "dropped")
    assert (dropped["topic"], dropped["offset"]) == (name, 0)
    assert dropped["detail"] == f"dead letter {name}.dead@0 after delivery 1: out of boxes"
    assert [one["what"] for one in events][-2:] == ["given back", "dropped"]


def test_a_trace_shows_pages_and_streams_that_read_a_message(
    broker: Hosted, client: Asking, name: str
) -> None:
    topic = f"/v1/topics/{name}"
    client.ask("PUT", topic, {})
    with traced(client, names=f"{name}/#") as path:
        client.ask("POST", f"{topic}/records", {"payload": "1"})
        client.ask("GET", f"{topic}/records")
        stream = f"http://127.0.0.1:{broker.ports['http']}{topic}/stream?from=earliest"
        with urlopen(stream) as events_stream:
            while not events_stream.readline().startswith(b'data: {"offset"'):
                pass
            events = seen(client, path, "read page", "read stream")
    reads = [one for one in events if one["what"] == "read"]
    assert [(one["topic"], one["offset"]) for one in reads] == [(name, 0), (name, 0)]


def login(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_is_larger_than_its_reader_takes_is_dropped_and_told(
    broker: Hosted, client: Asking, name: str, qos: int
) -> None:
    with Wire(broker.port, f"{name}-r", MQTT_5) as reader, Wire(broker.port, name) as writer:
        reader.connect(properties=Properties(maximum_packet_size=200))
        reader.subscribe(name, qos=qos)
        writer.connect()
        with traced(client, names=name) as path:
            writer.publish(name, b"x" * 300, qos)
            events = seen(client, path, f"dropped {name}-r", f"stored {name}")
    assert of(events, "dropped")["detail"] == "too_large"
    assert {one["what"] for one in events} == {"received", "stored", "dropped"}


def test_a_message_that_finds_the_buffer_of_its_reader_full_is_dropped_and_told(
    broker: Hosted, client: Asking, name: str
) -> None:
    with Wire(broker.port, f"{name}-r") as stuck, Wire(broker.port, name) as writer:
        stuck.connect()
        stuck.subscribe(name)
        writer.connect()
        before = broker.dropped["queue_full"]
        with traced(client, names=name) as path:
            for _ in range(40):  # the reader takes none of them
                writer.send(Publish(name, bytes(1024 * 1024), 0))
            writer.settle()
            dropped = broker.dropped["queue_full"] - before
            events = seen(client, path, f"dropped {name}-r")
    counts = {"sent": 0, "dropped": 0}
    for one in events:
        if one.get("client") == f"{name}-r":
            counts[one["what"]] += one.get("count", 1)
            assert one.get("detail", "") == ("queue_full" if one["what"] == "dropped" else "")
    assert counts == {"sent": 40 - dropped, "dropped": dropped}


def test_a_trace_sees_and_shows_nothing_of_another_tenant(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker:
        add_tenants(broker)
        with Asker(broker, "acme") as acme, Asker(broker, "globex") as globex:
            path = "/v1/traces/{}".format(acme.get("POST", "/v1/traces", {"names": "#"})["trace"])
            follow = acme.get("POST", "/v1/traces", {"client": "pump"})["trace"]
            for tenant in ("globex", "default", "acme"):
                with Client(broker, tenant, "pump") as pump:
                    pump.subscribe("state", qos=1)
                    pump.publish("state", tenant.encode(), 1)
                    assert pump.receive().payload == tenant.encode()
                    pump.settle()
            for one in (path, f"/v1/traces/{follow}"):
                told = acme.get("GET", one)["events"]
                whole = ["received", "stored", "sent", "acknowledged"]
                assert [event["what"] for event in told] == whole
                assert {event["offset"] for event in told} == {0}
            assert globex.get("GET", "/v1/traces")["traces"] == []
            for method in ("GET", "DELETE"):
                assert globex.get(method, path) == 404
            assert acme.get("GET", path)["is_on"]


def test_a_message_that_expired_before_its_reader_came_is_dropped_and_told(
    broker: Hosted, client: Asking, name: str
) -> None:
    with Wire(broker.port, name, MQTT_5) as reader:
        reader.connect(properties=kept())
        reader.subscribe(name, qos=1)
        reader.disconnect()
    with Wire(broker.port, f"{name}-w", MQTT_5) as writer, traced(client, names=name) as path:
        writer.connect()
        writer.send(Publish(name, b"1", 1, False, False, 1, Properties(message_expiry_interval=1)))
        writer.expect(Puback)
        broker.wait_past_us(1_100_000)
        with Wire(broker.port, name, MQTT_5) as reader:
            reader.connect(clean=False, properties=kept())
            events = seen(client, path, f"dropped {name}")
    assert of(events, "dropped")["detail"] == "expired"
    assert of(events, "dropped")["offset"] == of(events, "stored")["offset"]


def test_a_message_waits_for_a_shared_subscription_without_members_and_is_told_when_it_expires(
    broker: Hosted, client: Asking, name: str
) -> None:
    share = f"$share/g/{name}"
    with Wire(broker.port, name, MQTT_5) as reader:
        reader.connect(properties=kept())
        reader.subscribe(share, qos=1)
        reader.disconnect()
    with Wire(broker.port, f"{name}-w", MQTT_5) as writer, traced(client, names=name) as path:
        writer.connect()
        writer.send(Publish(name, b"1", 1, False, False, 1, Properties(message_expiry_interval=1)))
        writer.expect(Puback)
        events = seen(client, path, f"waiting {share}")
        assert "shared subscription is away" in of(events, "waiting")["detail"]
        broker.wait_past_us(1_100_000)
        with Wire(broker.port, name, MQTT_5) as reader:
            reader.connect(clean=False, properties=kept())
            events = seen(client, path, f"dropped {share}")
    assert of(events, "dropped")["detail"] == "expired"
    assert of(events, "dropped")["offset"] == of(events, "stored")["offset"]


def test_a_message_that_cannot_be_written_is_refused_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Hosted(tmp_path) as broker,
        Asking(broker.ports["http"]) as client,
        Wire(broker.port, "w", MQTT_5) as writer,
    ):
        writer.connect()
        client.ask("PUT", "/v1/topics/jobs", {})
        with traced(client, names="jobs/#") as path:
            with failing(monkeypatch, "write", FULL):
                writer.send(Publish("jobs/1", b"x", 1, packet_id=1))
                assert writer.expect(Puback).reason == Reason.QUOTA_EXCEEDED
                asked = {"payload": "x", "name": "jobs/2"}
                assert client.ask("POST", "/v1/topics/jobs/records", asked).status == 503
            events = seen(client, path, "refused w", "refused")
    assert {one["what"] for one in events} == {"refused"}
    assert all(one["detail"].startswith("log unavailable: ") for one in events)


def test_a_qos_2_message_that_its_reader_rejects_is_told(
    broker: Hosted, client: Asking, name: str
) -> None:
    with Wire(broker.port, f"{name}-r", MQTT_5) as reader, Wire(broker.port, name) as writer:
        reader.connect()
        reader.subscribe(name, qos=2)
        writer.connect()
        with traced(client, names=name) as path:
            writer.publish(name, b"1", 2)
            message = reader.expect(Publish)
            reader.send(Pubrec(message.packet_id, 0x83))
            events = seen(client, path, f"dropped {name}-r")
    assert of(events, "dropped")["detail"] == "the client rejected the message"


def test_of_a_stored_record_every_reader_is_shown(
    broker: Hosted, client: Asking, name: str
) -> None:
    client.ask("PUT", f"/v1/topics/{name}", {})
    client.ask("POST", "/v1/bindings", {"filter": f"{name}/#", "topic": name})
    with Wire(broker.port, f"{name}-away", MQTT_5) as away:
        away.connect(properties=kept())
        away.subscribe(f"{name}/#", qos=1)
        away.disconnect()
    with Wire(broker.port, f"{name}-here") as here, Wire(broker.port, f"{name}-w") as writer:
        here.connect()
        here.subscribe(f"{name}/+", qos=1)
        writer.connect()
        writer.publish_all(f"{name}/x", 2, 1)
        here.acknowledge(here.pick(Publish))
        here.pick(Publish)
        client.ask("PUT", f"/v1/topics/{name}/consumers/late", {"from": "earliest"})
        client.ask("PUT", f"/v1/topics/{name}/consumers/level", {"from": "latest"})
        client.ask("POST", f"/v1/topics/{name}/groups/jobs/fetch", {"limit": 1})

        def states(offset: int) -> dict[str, str]:
            known = client.ask("GET", f"/v1/topics/{name}/records/{offset}/trace").json
            assert known["record"]["publisher"] == f"{name}-w"
            return {
                one["reader"].removeprefix(f"{name}-"): one["state"] for one in known["readers"]
            }

        wait_until(lambda: states(0)["here"] == "passed")
        assert states(0) == {
            "late": "waiting",
            "level": "passed",
            "jobs": "unacknowledged",
            "away": "waiting",
            "here": "passed",
        }
        assert (states(1)["here"], states(1)["jobs"]) == ("unacknowledged", "waiting")
    assert client.ask("GET", f"/v1/topics/{name}/records/2/trace").status == 409
    assert client.ask("GET", f"/v1/topics/{name}/records/first/trace").status == 400


def test_a_qos_0_record_is_not_kept_for_sessions(broker: Hosted, client: Asking, name: str) -> None:
    client.ask("PUT", f"/v1/topics/{name}", {})
    client.ask("POST", "/v1/bindings", {"filter": f"{name}/#", "topic": name})
    with Wire(broker.port, name) as wire:
        wire.connect()
        wire.subscribe(f"{name}/#", qos=1)
        wire.publish(f"{name}/x", b"1")
        wire.receive()
        path = f"/v1/topics/{name}/records/0/trace"
        wait_until(lambda: client.ask("GET", path).status == 200)
        (reader,) = client.ask("GET", path).json["readers"]
    assert (reader["reader"], reader["state"]) == (name, "not kept")


def test_nothing_listens_when_no_trace_is_on(broker: Hosted, client: Asking, name: str) -> None:
    engine = broker.exchange.engine
    before, errands = len(engine.followers), len(engine.upkeep.errands)
    with Wire(broker.port, name) as wire:
        wire.connect()
        session = broker.exchange.sessions.connected[name]
        with traced(client, names="a"), traced(client, client="b"):
            assert engine.watch is not None and len(engine.followers) == before + 1
            assert session.outbox is not None and session.outbox.watch is engine.watch
        assert engine.watch is None and len(engine.followers) == before
        assert len(engine.upkeep.errands) == errands
        assert session.outbox is not None and session.outbox.watch is None


def test_a_trace_ends_by_itself_and_its_events_stay(
    broker: Hosted, client: Asking, name: str
) -> None:
    with traced(client, names=name, seconds=1) as path:
        ended = client.ask("GET", f"{path}?wait=10s").json
        assert not ended["is_on"] and ended["events"] == []
        assert broker.exchange.engine.watch is None


def test_the_number_of_traces_is_bounded_and_one_that_is_over_makes_room(
    broker: Hosted, client: Asking, name: str
) -> None:
    begun = [
        client.ask("POST", "/v1/traces", {"names": name}).json["trace"] for _ in range(TRACES_MAX)
    ]
    assert client.ask("POST", "/v1/traces", {"names": name}).status == 409
    tracer = broker.http.tenants.worlds[0].tracer
    broker.call(lambda: tracer.end(tracer.traces[begun[0]]))
    begun.append(client.ask("POST", "/v1/traces", {"names": name}).json["trace"])
    listed = [one["trace"] for one in client.ask("GET", "/v1/traces").json["traces"]]
    assert listed == begun[1:]
    for one in listed:
        assert client.ask("DELETE", f"/v1/traces/{one}").status == 204


@pytest.mark.parametrize(
    "wrong", [{"names": "a/#/b"}, {"names": "a", "seconds": 0}, {"names": "a", "seconds": 3601}]
)
def test_a_trace_of_an_invalid_filter_or_for_too_long_is_refused(
    client: Asking, wrong: Any
) -> None:
    assert client.ask("POST", "/v1/traces", wrong).status == 400


def test_a_trace_holds_so_many_events_and_takes_so_many_in_a_second() -> None:
    trace = Trace(1, "#", "", 0, 0)
    for second in range(EVENTS_MAX // EVENTS_PER_S + 1):
        for _ in range(EVENTS_PER_S + 3):
            trace.add(TraceEvent(0, 0, "sent", "a"), second * 1_000_000)
    events = trace.events_after(0)
    assert len(events) == EVENTS_MAX
    assert events[-1].number == trace.last_number == EVENTS_MAX + EVENTS_PER_S
    assert trace.skipped == 3 * (EVENTS_MAX // EVENTS_PER_S + 1)
