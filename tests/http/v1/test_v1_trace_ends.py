"""Does a trace tell of messages that nobody gets: by retention, and when a session ends?"""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex

import pytest

from penstock.broker.trace.memory import REMEMBERED_MAX, ByReader
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Publish
from penstock.mqtt.properties import Properties
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, kept
from tests.http.asking import Asking
from tests.http.v1.test_v1_traces import of, seen, traced
from tests.waiting import wait_until

RECORD_BYTES = 1_024  # that do not compress
SEGMENT_BYTES = 64 * 1_024
EXPIRY_S = 3  # time to publish what waits for the session


def look_after(hosted: Hosted) -> None:
    hosted.run(lambda server: hosted.exchange.engine.upkeep.look_after_all())


def test_messages_that_retention_removes_are_told_and_who_has_not_read_them(tmp_path: Path) -> None:
    small = {"log__segment_bytes": SEGMENT_BYTES, "log__upkeep_every": "1h"}
    with Hosted(tmp_path, **small) as hosted, Asking(hosted.ports["http"]) as client:
        topic = "/v1/topics/orders"
        client.ask("PUT", topic, {"retention_bytes": SEGMENT_BYTES})
        for place in ("consumers/behind", "consumers/level", "groups/packers"):
            assert client.ask("PUT", f"{topic}/{place}", {"from": "earliest"}).status == 201
        with Wire(hosted.port, "away", MQTT_5) as reader:
            reader.connect(properties=kept())
            reader.subscribe("orders/1", qos=1)
            reader.disconnect()
        with traced(client, names="orders/#") as path:
            for name in ("orders/1", "orders/2", "orders/2"):
                client.ask("POST", f"{topic}/records", {"name": name, "payload": "x"})
            seen(client, path, "waiting away")
            client.ask("POST", f"{topic}/consumers/level/fetch", {})
            client.ask("POST", f"{topic}/consumers/level/commit", {})
            for _ in range(3):
                big = [{"name": "other", "payload": token_hex(RECORD_BYTES)} for _ in range(100)]
                assert client.ask("POST", f"{topic}/records", big).status == 200
            assert not [one for one in seen(client, path) if one["what"] == "removed"]
            look_after(hosted)
            events = seen(client, path, "removed", "dropped away", "dropped group packers")
        removed = [one for one in events if one["what"] == "removed"]
        assert [(one["name"], one["offset"], one.get("count", 1)) for one in removed] == [
            ("orders/1", 0, 1),
            ("orders/2", 1, 2),
        ]
        dropped = [one for one in events if one["what"] == "dropped"]
        assert {(one["client"], one["offset"], one.get("count", 1)) for one in dropped} == {
            ("away", 0, 1),
            ("consumer behind", 0, 1),
            ("consumer behind", 1, 2),
            ("group packers", 0, 1),
            ("group packers", 1, 2),
        }
        assert {one["detail"] for one in removed + dropped} == {"retention"}


def test_messages_of_a_topic_that_is_deleted_are_told(
    client: Asking, name: str, broker: Hosted
) -> None:
    client.ask("PUT", f"/v1/topics/{name}", {})
    with traced(client, names=f"{name}/#") as path:
        client.ask("POST", f"/v1/topics/{name}/records", {"name": f"{name}/1", "payload": "x"})
        assert client.ask("DELETE", f"/v1/topics/{name}").status == 204
        look_after(broker)
        events = seen(client, path, "removed")
    assert of(events, "removed")["detail"] == "the topic was deleted"


@pytest.mark.parametrize("ending", ["forgotten", "clean start", "expired"])
def test_messages_that_wait_for_a_session_are_dropped_when_it_ends(
    broker: Hosted, client: Asking, name: str, ending: str
) -> None:
    with Wire(broker.port, name, MQTT_5) as reader:
        reader.connect(properties=kept(EXPIRY_S if ending == "expired" else 3_600))
        reader.subscribe(f"{name}/#", qos=1)
        reader.disconnect()
    with Wire(broker.port, f"{name}-w") as writer, traced(client, names=f"{name}/#") as path:
        writer.connect()
        writer.publish(f"{name}/1", b"1", 1)
        seen(client, path, f"waiting {name}")
        if ending == "forgotten":
            assert client.ask("DELETE", f"/v1/sessions/{name}").status == 204
        elif ending == "clean start":
            with Wire(broker.port, name, MQTT_5) as reader:
                reader.connect()
        else:
            broker.wait_past_us(EXPIRY_S * 1_000_000 + 100_000)
        events = seen(client, path, f"dropped {name}")
    dropped = of(events, "dropped")
    assert (dropped["name"], dropped["offset"]) == (f"{name}/1", of(events, "stored")["offset"])
    why = {"forgotten": "the session ended", "expired": "the session expired"}
    assert dropped["detail"] == why.get(ending, "a new session began")


def test_messages_that_expired_while_their_reader_was_away_are_dropped_once(
    broker: Hosted, client: Asking, name: str
) -> None:
    with Wire(broker.port, name, MQTT_5) as reader:
        reader.connect(properties=kept())
        reader.subscribe(f"{name}/#", qos=1)
        reader.disconnect()
    soon = Properties(message_expiry_interval=1)
    with (
        Wire(broker.port, f"{name}-w", MQTT_5) as writer,
        traced(client, names=f"{name}/#") as path,
    ):
        writer.connect()
        both = [Publish(f"{name}/1", b"1", 1, packet_id=one, properties=soon) for one in (1, 2)]
        writer.send(*both)  # they are one run
        wait_until(
            lambda: [one["what"] for one in seen(client, path)].count("waiting") == len(both)
        )
        broker.wait_past_us(1_100_000)
        with Wire(broker.port, name, MQTT_5) as reader:
            reader.connect(clean=False, properties=kept())
            seen(client, path, f"dropped {name}")
            reader.disconnect()
        assert client.ask("DELETE", f"/v1/sessions/{name}").status == 204
        events = seen(client, path)
    dropped = [one for one in events if one["what"] == "dropped"]
    assert sum(one.get("count", 1) for one in dropped) == len(both)
    assert {one["detail"] for one in dropped} == {"expired"}


def test_an_unacknowledged_message_is_dropped_when_its_session_ends_with_the_connection(
    broker: Hosted, client: Asking, name: str
) -> None:
    with Wire(broker.port, f"{name}-w") as writer, traced(client, names=f"{name}/#") as path:
        writer.connect()
        with Wire(broker.port, name, MQTT_5) as reader:
            reader.connect()
            reader.subscribe(f"{name}/#", qos=1)
            for number in (1, 2):
                writer.publish(f"{name}/{number}", b"1", 1)
            first, _ = reader.pick(Publish), reader.pick(Publish)
            reader.acknowledge(first)
            seen(client, path, f"acknowledged {name}")
        events = seen(client, path, f"dropped {name}")
    dropped = of(events, "dropped")
    assert (dropped["name"], dropped["detail"]) == (f"{name}/2", "the session ended")


def test_a_session_that_had_its_messages_loses_none_when_it_ends(
    broker: Hosted, client: Asking, name: str
) -> None:
    """Also those of QoS 0 that waited for it, which it is sent without an acknowledgement."""
    with Wire(broker.port, name, MQTT_5) as reader:
        reader.connect(properties=kept())
        reader.subscribe(f"{name}/1", qos=1)
        reader.subscribe_feed(f"{name}/0", qos=0, from_="latest")
        reader.disconnect()
    with Wire(broker.port, f"{name}-w") as writer, traced(client, names=f"{name}/#") as path:
        writer.connect()
        for qos in (0, 1):
            writer.publish(f"{name}/{qos}", b"1", 1)
        seen(client, path, f"waiting {name}")
        with Wire(broker.port, name, MQTT_5) as reader:
            reader.connect(clean=False, properties=kept())
            for _ in range(2):
                message = reader.pick(Publish)
                if message.qos:
                    reader.acknowledge(message)
            seen(client, path, f"acknowledged {name}")
            reader.disconnect()
        assert client.ask("DELETE", f"/v1/sessions/{name}").status == 204
        events = seen(client, path)
    assert not [one for one in events if one["what"] == "dropped"]


def test_what_a_member_of_a_share_had_goes_to_another_and_ends_with_the_last_one(
    broker: Hosted, client: Asking, name: str
) -> None:
    share = f"$share/g/{name}"
    with Wire(broker.port, f"{name}-w") as writer, traced(client, names=name) as path:
        writer.connect()
        with Wire(broker.port, f"{name}-1", MQTT_5) as one:
            one.connect()
            one.subscribe(share, qos=1)
            writer.publish(name, b"1", 1)
            one.pick(Publish)
            with Wire(broker.port, f"{name}-2", MQTT_5) as two:
                two.connect()
                two.subscribe(share, qos=1)
                one.disconnect()
                two.pick(Publish)
                events = seen(client, path, f"given back {name}-1", f"sent {name}-2")
                assert not [one for one in events if one["what"] == "dropped"]
        events = seen(client, path, f"given back {name}-2", f"dropped {share}")
    assert "no session holds" in of(events, "dropped")["detail"]
    assert len({one["offset"] for one in events}) == 1


def test_what_is_remembered_is_bounded() -> None:
    memory: ByReader[int, str] = ByReader()
    for number in range(REMEMBERED_MAX + 5):
        memory.put(f"r{number % 3}", number, "x")
    assert len(list(memory)) == REMEMBERED_MAX
    memory.put("r0", 0, "changed")
    assert memory.pop("r0", 0) == "changed" and memory.pop("r0", 0) is None
    memory.put("r9", 1, "y")
    assert len(list(memory)) == REMEMBERED_MAX
    taken = len(memory.take("r1"))
    assert len(list(memory)) == REMEMBERED_MAX - taken and not memory.take("r1")
