"""Does dispatch find for every session what the broker itself has for it?"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock import RefusedError
from penstock.cli.main import main
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import (
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.properties import Properties
from penstock.pipeline import dispatch
from penstock.pipeline.jobs import Progress
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, connect_kept
from tests.pipeline.source.reading import address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
LEVELS = ("a", "b", "c")
CLIENTS = 8


def rows_of(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return rows


def as_set(table: Path) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in rows_of(table)}


def drain(wire: Wire) -> Counter[tuple[str, int]]:
    """Everything the broker has for a client, acknowledged: names and QoS."""
    got: Counter[tuple[str, int]] = Counter()
    while (packet := wire.poll(0.3)) is not None:
        assert isinstance(packet, Publish)
        wire.acknowledge(packet)
        got[packet.name, packet.qos] += 1
    return got


def subscribe(wire: Wire, wanted: Subscription, **asked: str) -> None:
    pairs = tuple((key.rstrip("_"), value) for key, value in asked.items())
    wire.send(Subscribe(wire.take_id(), (wanted,), Properties(user_properties=pairs)))
    wire.pick(Suback)


def leave(broker: Hosted, client_id: str, *filters: Subscription, **asked: str) -> None:
    """A session that outlives its client, which has gone."""
    wire, _ = connect_kept(broker.port, client_id, MQTT_5)
    for one in filters:
        subscribe(wire, one, **asked)
    drain(wire)
    wire.disconnect()
    broker.wait_idle()


def publish(broker: Hosted, *names: str, qos: int = 1) -> None:
    with Wire(broker.port, "publisher", MQTT_5) as wire:
        wire.connect()
        for number, name in enumerate(names):
            wire.publish(name, b'{"n": %d}' % number, qos)
        wire.publish("settled", b"", 1)


def returned(broker: Hosted, client_id: str) -> Counter[tuple[str, int]]:
    """What the broker has for a client that comes back."""
    wire, present = connect_kept(broker.port, client_id, MQTT_5)
    assert present
    with wire:
        return drain(wire)


def random_filter(chance: random.Random) -> str:
    levels = [chance.choice([*LEVELS, "+"]) for _ in range(chance.randint(1, 3))]
    if chance.random() < 0.4:
        levels[-1] = "#"
    return "/".join(levels)


def random_sessions(broker: Hosted, chance: random.Random) -> None:
    """Clients that come, subscribe, hear a little, change their minds and go."""
    names = ["/".join(chance.choices(LEVELS, k=chance.randint(1, 3))) for _ in range(30)]
    for _ in range(3):
        for number in range(CLIENTS):
            wire, _ = connect_kept(broker.port, f"client-{number}", MQTT_5)
            for _ in range(chance.randint(0, 2)):
                is_choosy = chance.random() < 0.3
                wanted = Subscription(random_filter(chance), chance.randint(0, 2), is_choosy)
                subscribe(wire, wanted, **({"where": "payload.n > 9"} if is_choosy else {}))
            if chance.random() < 0.3:
                wire.send(Unsubscribe(wire.take_id(), (random_filter(chance),)))
                wire.pick(Unsuback)
            wire.publish(chance.choice(names), b"own", 1)
            drain(wire)
            wire.disconnect()
        broker.wait_idle()
        for qos in (0, 1, 2):
            publish(broker, *chance.choices(names, k=20), qos=qos)


def counted_by_the_broker(data: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    """What `penstock session list` says, of clients that are away."""
    capsys.readouterr()
    assert main(["session", "list", "--json", "--at", str(data)]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert all(one["is_exact"] for one in listed)
    return {one["client_id"]: one["waiting"] for one in listed if not one["is_connected"]}


def test_what_waits_and_what_is_delivered_is_what_the_broker_sends(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    with Hosted(tmp_path / "data") as broker:
        broker.run(lambda server: server.broker.create_topic("a"))
        random_sessions(broker, random.Random(SEED))
        found = dispatch(path=tmp_path / "data", to=tmp_path / "out", spark=spark)
        assert found.waiting.keys() == {f"client-{number}" for number in range(CLIENTS)}
        assert sum(found.waiting.values()) > 0
        assert counted_by_the_broker(tmp_path / "data", capsys) == found.waiting
        told = dispatch(url=address(broker), to=tmp_path / "told", spark=spark)
        assert (told.waiting, told.by_topic) == (found.waiting, found.by_topic)
        deliveries = [as_set(tmp_path / where / "deliveries") for where in ("out", "told")]
        assert deliveries[0] == deliveries[1]
        by_client: dict[str, Counter[tuple[str, int]]] = {}
        for row in rows_of(tmp_path / "out" / "deliveries"):
            by_client.setdefault(row["client_id"], Counter())[row["name"], row["qos"]] += 1
        for client, waiting in found.waiting.items():
            got = returned(broker, client)
            assert got.total() == waiting, client
            assert got <= by_client.get(client, Counter()), client
    kept = Counter({row["client_id"]: 0 for row in rows_of(tmp_path / "out" / "waiting")})
    for row in rows_of(tmp_path / "out" / "waiting"):
        kept[row["client_id"]] += row["waiting"]
    assert kept == {client: count for client, count in found.waiting.items() if count}
    assert found.progress.rows == sum(counts.total() for counts in by_client.values())


def test_a_table_of_deliveries_goes_on_where_it_ended(spark: SparkSession, tmp_path: Path) -> None:
    told: list[Progress] = []
    with Hosted(tmp_path / "data") as broker:
        leave(broker, "one", Subscription("x/#", 2), Subscription("x/1", 1))
        leave(broker, "other", Subscription("+/1", 0), Subscription("$SYS/#", 1))
        publish(broker, "x/1", "x/2", "y/1", "$x/1")
        first = dispatch(
            path=tmp_path / "data", to=tmp_path / "out", batch_records=2, spark=spark,
            report=told.append,
        )  # fmt: skip
        assert (first.progress.rows, first.progress.batches, first.progress.lag) == (4, 3, 0)
        assert first.waiting == {"one": 2, "other": 0}
        assert told[-1].offsets == {"default": 5}
        assert told[-1].says == "counting what waits"
        again = dispatch(path=tmp_path / "data", to=tmp_path / "out", spark=spark)
        assert (again.progress.rows, again.waiting) == (0, first.waiting)
        publish(broker, "x/1", qos=2)
        assert dispatch(path=tmp_path / "data", to=tmp_path / "out", spark=spark).waiting == {
            "one": 3,
            "other": 0,
        }
    rows = rows_of(tmp_path / "out" / "deliveries")
    found = sorted((r["client_id"], r["topic"], r["offset"], r["name"], r["qos"]) for r in rows)
    assert found == [
        ("one", "default", 0, "x/1", 1), ("one", "default", 1, "x/2", 1),
        ("one", "default", 5, "x/1", 2), ("other", "default", 0, "x/1", 0),
        ("other", "default", 2, "y/1", 0), ("other", "default", 5, "x/1", 0),
    ]  # fmt: skip
    assert {row["feed"] for row in rows} == {0}


def test_a_run_without_a_table_says_what_waits_and_is_in_the_catalog(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Hosted(tmp_path) as broker:
        leave(broker, "c", Subscription("x", 1))
        publish(broker, "x", "x")
        main(["pipeline", "run", "dispatch", "--at", str(tmp_path)])
        assert "2 messages wait for 1 session\n" in capsys.readouterr().out
        runs = broker.run(lambda server: server.broker.pipeline_runs())
        assert [(run.job, run.state) for run in runs] == [("dispatch", "done")]


def test_no_sessions_and_no_topics_are_no_trouble(spark: SparkSession, tmp_path: Path) -> None:
    with Hosted(tmp_path / "data"):
        pass
    found = dispatch(path=tmp_path / "data", to=tmp_path / "out", spark=spark)
    assert (found.waiting, found.progress.rows) == ({}, 0)


def test_a_directory_with_something_else_in_it_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Hosted(tmp_path / "data"):
        pass
    (tmp_path / "out" / "waiting").mkdir(parents=True)
    with pytest.raises(RefusedError, match="is not a Delta table"):
        dispatch(path=tmp_path / "data", to=tmp_path / "out", spark=spark)
