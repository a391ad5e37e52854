"""Is a migrated broker the same broker, offset by offset, however often it was interrupted?"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import AsyncBroker, Broker, Record
from penstock.app.migrate.planning import Wishes, plan_topics
from penstock.app.migrate.source import open_source
from penstock.cli.main import main
from penstock.log.kafka.copied import FILL_RECORDS
from penstock.model.errors import RefusedError
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Pubcomp, Publish, Pubrec, Pubrel, Will
from penstock.mqtt.properties import Properties
from tests.doors.served import Served
from tests.doors.wire import Wire, kept
from tests.history.world import TieringWorld, keep
from tests.kafka_server import KafkaServer
from tests.postgres_server import PostgresServer

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
PENSTOCK = (sys.executable, "-m", "penstock.cli.main")
KILLED = -9


class Place:
    """A data directory to migrate, and where to."""

    def __init__(self, kafka: KafkaServer, postgres: PostgresServer, folder: Path) -> None:
        self.old, self.new = folder / "old", folder / "new"
        self.config = folder / "new.toml"
        self.kafka, self.postgres = kafka, postgres
        self.prefix, self.schema = kafka.new_prefix(), postgres.new_schema()
        self.write()

    def write(self, **changed: str) -> None:
        values = {"data": str(self.new), "prefix": self.prefix, "schema": self.schema} | changed
        self.config.write_text(
            f'[server]\ndata = "{values["data"]}"\n[log]\nbackend = "kafka"\n'
            f'[kafka]\nbootstrap = "{self.kafka.bootstrap}"\nprefix = "{values["prefix"]}"\n'
            f'replication = 1\n[catalog]\nurl = "{self.postgres.url}"\n'
            f'schema = "{values["schema"]}"\n'
        )

    @property
    def command(self) -> list[str]:
        return [*PENSTOCK, "migrate", "--at", str(self.old), "--to", str(self.config), "--json"]

    def migrate(self, *flags: str) -> dict[str, Any]:
        done = subprocess.run([*self.command, *flags], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def refused(self, *flags: str) -> str:
        done = subprocess.run([*self.command, *flags], capture_output=True, text=True)
        assert done.returncode in (1, 3), (done.returncode, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stderr

    def served(self) -> Served:
        """The broker that comes after the migration."""
        return Served(self.new, "--config", str(self.config), "--allow-anonymous")

    def files(self) -> dict[str, str]:
        """All that is in the old directory."""
        return {
            str(path.relative_to(self.old)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.old.rglob("*"))
            if path.is_file()
        }

    def old_records(self, *topics: str) -> dict[str, list[Record]]:
        """Read before the migration: opening the directory again may write to it."""
        with Broker(self.old) as broker:
            return {topic: list(broker.read(topic)) for topic in topics}

    def new_records(self, *topics: str) -> dict[str, list[Record]]:
        settings: dict[str, Any] = {
            "log_backend": "kafka",
            "kafka_bootstrap": self.kafka.bootstrap,
            "kafka_prefix": self.prefix,
            "kafka_replication": 1,
            "catalog_url": self.postgres.url,
            "catalog_schema": self.schema,
        }
        with Broker(self.new, **settings) as broker:
            return {topic: list(broker.read(topic)) for topic in topics}


@pytest.fixture
def place(kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path) -> Place:
    return Place(kafka, postgres, tmp_path)


async def fill(path: Path, seed: int = 1) -> None:
    """Topics with sealed, trimmed, erased, expired and large records, and an empty one."""
    noise = random.Random(seed)
    settings: dict[str, Any] = {"segment_bytes": "64 KiB"}
    async with AsyncBroker(path, **settings) as broker:
        await broker.create_topic("orders", retention_bytes="256 KiB")
        await broker.create_topic("few", durability="os")
        await broker.create_topic("empty")
        await broker.subscribe("behind", "orders")
        for round_ in range(120):
            some = [noise.randbytes(noise.randrange(200)) for _ in range(noise.randrange(1, 60))]
            name = f"orders/{noise.randrange(5)}"
            await broker.publish_many(some, "orders", name=name, headers=[("round", str(round_))])
        await broker.publish(noise.randbytes(3_000_000), "few", name="few/large")
        await broker.publish({"json": True}, "few", name="few/1", headers=[("a", "1"), ("a", "2")])
        await broker.publish("text", "few", name="few/2", retain=True)
        await broker.publish(b"secret", "few", name="few/secret")
        await broker.subscribe("middle", "orders", start="latest")
        await broker.publish_many([b"after"] * 10, "orders")
        assert len(await broker.consume("middle", "orders", limit=4)) == 4
        await broker.commit("middle", "orders")
        await broker.engine.upkeep.look_after_all()
        await broker.erase("few/secret", "few")
        (orders,) = [one for one in await broker.topics() if one.topic == "orders"]
        assert 0 < orders.first_offset < orders.end_offset


def test_every_offset_has_the_record_that_it_had_and_the_old_directory_is_untouched(
    place: Place,
) -> None:
    asyncio.run(fill(place.old))
    topics = ("orders", "few", "empty")
    old = place.old_records(*topics)
    files = place.files()
    plan = place.migrate("--dry-run")
    assert plan["continues"] is False and plan["seconds"] > 0
    assert not place.new.exists()
    assert place.postgres.fetch("select 1 from pg_tables where schemaname = $1", place.schema) == []
    done = place.migrate()
    assert place.files() == files
    assert {one["topic"]: one["records"] for one in done["topics"]} == {
        topic: len(records) for topic, records in old.items()
    }
    assert place.new_records(*topics) == old
    assert old["orders"][0].offset == done["topics"][0]["first"] > 0
    # The new broker goes on at the offset that comes next, and consumers where they were.
    with place.served() as served, penstock.connect(f"http://127.0.0.1:{served.http_port}") as new:
        assert new.publish(b"next", "orders") == old["orders"][-1].offset + 1
        rest = [one.payload for one in new.consume("middle", "orders", limit=10)]
        assert rest == [b"after"] * 6 + [b"next"]
        lags = {one.topic: one.durability for one in new.topics()}
        assert lags == {"orders": "fsync", "few": "replicated", "empty": "fsync"}


def test_a_start_of_many_trimmed_offsets_is_filled_and_removed(place: Place) -> None:
    removed = 2 * FILL_RECORDS + 17

    async def make() -> None:
        async with AsyncBroker(place.old, segment_bytes="64 KiB") as broker:
            await broker.create_topic("t")
            for _ in range(2):
                await broker.publish_many([b""] * FILL_RECORDS, "t")
            await broker.publish_many([b""] * 17, "t")
            await broker.publish(os.urandom(70_000), "t")  # the next segment begins behind it
            await broker.publish_many([b"kept"] * 5, "t")
            await broker.alter_topic("t", retention_bytes="64 KiB")
            await broker.engine.upkeep.look_after_all()

    asyncio.run(make())
    old = place.old_records("t")
    assert old["t"][0].offset >= removed
    place.migrate()
    assert place.new_records("t") == old


def fill_sessions(served: Served) -> None:
    """Clients of every kind, all of them away at the end."""
    port = served.port
    with Wire(port, "reader", MQTT_5) as reader, Wire(port, "writer") as writer:
        reader.connect(clean=False, properties=kept())
        reader.subscribe("s/#", qos=2)
        writer.connect()
        writer.publish("s/1", b"acknowledged", 1)
        reader.receive()
        writer.publish("s/1", b"one", 1)
        writer.publish("s/2", b"two", 2)
        first, second = reader.expect(Publish), reader.expect(Publish)
        assert (first.payload, second.payload) == (b"one", b"two")
        reader.send(Pubrec(second.packet_id))
        reader.pick(Pubrel, second.packet_id)
        reader.disconnect()
        writer.publish("s/3", b"while away", 1)
        writer.publish("r/1", b"retained", 1, retain=True)
    with Wire(port, "share-member", MQTT_5) as member:
        member.connect(clean=False, properties=kept())
        member.subscribe("$share/g/s/#", qos=1)
        member.disconnect()
    with Wire(port, "half", MQTT_5) as half:
        half.connect(clean=False, properties=kept())
        half.send(Publish("s/once", b"exactly once", 2, packet_id=77))
        half.pick(Pubrec, 77)
        half.disconnect()
    will = Will("s/will", b"gone", 1, properties=Properties(will_delay_interval=3600))
    with Wire(port, "dying", MQTT_5) as dying:
        dying.connect(clean=False, properties=kept(7200), will=will)
    with Wire(port, "writer-2") as writer:
        writer.connect()
        writer.publish("s/4", b"for the share", 1)


def test_sessions_resume_exactly_where_they_were(
    place: Place, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Served(place.old) as served:
        fill_sessions(served)
        url = f"http://127.0.0.1:{served.http_port}"
        with penstock.connect(url) as client:
            group = client.join_group("workers", "default")
            held = group.fetch(limit=2)
            group.ack(held[:1])
        (tmp_path / "password").write_text("a long password\n")
    at = ("--at", str(place.old))
    for command in (
        ("tenant", "add", "acme"),
        ("topic", "create", "theirs", "--tenant", "acme"),
        ("publish", "theirs", "hello", "--tenant", "acme"),
        ("user", "add", "ada", "--password-file", str(tmp_path / "password")),
        ("role", "add", "plant"),
        ("rule", "add", "--role", "plant", "allow subscribe s/#"),
        ("binding", "add", "plant/#", "default"),
    ):
        assert main([*command, *at]) == 0, (command, capsys.readouterr())
    old = place.old_records("default")
    done = place.migrate()
    tables = done["tables"]
    assert tables["subscriptions"] == 2 and tables["shares"] == 1
    assert tables["sessions"] == 4 and tables["wills"] == 1 and tables["retained"] == 1
    assert tables["credentials"] == 1 and tables["rules"] == 1 and tables["clients"] == 6
    assert place.new_records("default") == old
    with place.served() as served:
        check_sessions(served)
        url = f"http://127.0.0.1:{served.http_port}"
        with penstock.connect(url) as client:
            # Offset 0 was acknowledged; the lease of offset 1 ended with the old broker.
            again = client.join_group("workers", "default").fetch(limit=2)
            assert [one.record.offset for one in again] == [1, 2]
        with penstock.connect(url, user="ada", password="a long password") as ada:
            assert ada.size("default") > 0


def check_sessions(served: Served) -> None:
    with Wire(served.port, "reader", MQTT_5) as reader:
        assert reader.connect(clean=False, properties=kept()).session_present
        again = reader.expect(Publish)
        assert (again.payload, again.dup, again.qos) == (b"one", True, 1)
        reader.acknowledge(again)
        released = reader.expect(Pubrel)
        reader.send(Pubcomp(released.packet_id))
        assert reader.receive().payload == b"while away"
        assert reader.receive().payload == b"exactly once"
        assert reader.receive().payload == b"for the share"
        assert reader.settle() == []
        # QoS 2 that was opened before the migration is not stored again.
        with Wire(served.port, "half", MQTT_5) as half:
            assert half.connect(clean=False, properties=kept()).session_present
            half.send(Publish("s/once", b"exactly once", 2, dup=True, packet_id=77))
            half.pick(Pubrec, 77)
            half.send(Pubrel(77))
            half.pick(Pubcomp, 77)
        assert reader.settle() == []
        reader.subscribe("r/#", qos=1)
        kept_message = reader.receive()
        assert (kept_message.payload, kept_message.retain) == (b"retained", True)
    with Wire(served.port, "share-member", MQTT_5) as member:
        assert member.connect(clean=False, properties=kept()).session_present
        got = {member.receive().payload for _ in range(2)}
        assert got == {b"exactly once", b"for the share"}
        assert member.settle() == []


def kill_after(place: Place, seconds: float) -> int:
    """Begin, and kill it; 0 if it was done sooner."""
    running = subprocess.Popen(
        place.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        _, said = running.communicate(timeout=seconds)
        # The attempt before may have been killed when all was done, before it could say so.
        assert running.returncode == 0 or "was migrated to schema" in said, said
        return 0
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate()
    return running.returncode


def test_a_migration_that_is_killed_again_and_again_goes_on(place: Place) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    asyncio.run(fill(place.old, SEED))
    old = place.old_records("orders", "few", "empty")
    files = place.files()
    # Every attempt has a little longer than the one before, so that every step is hit.
    kills, wait_s = 0, 0.3
    while kill_after(place, wait_s) == KILLED:
        kills += 1
        wait_s *= chance.uniform(1.05, 1.2)
    assert kills > 3
    assert place.files() == files
    assert place.new_records("orders", "few", "empty") == old


class Stop(Exception):
    """The migration ends here, as if it had been killed."""


STEPS: dict[str, str] = {
    "before the first topic": "penstock.log.kafka.store.KafkaStore.create_copy",
    "before records are removed": "penstock.log.kafka.copied.CopiedPartition.trim",
    "before the comparison": "penstock.app.migrate.moving.find_difference",
    "before the catalog": "penstock.app.migrate.moving.move",
    "behind the catalog": "penstock.app.migrate.moving.check",
    "before the word to begin": "penstock.log.kafka.store.KafkaStore.end_migration",
}


@pytest.mark.parametrize("step", STEPS)
def test_no_broker_opens_an_unfinished_migration_and_the_next_run_finishes_it(
    place: Place, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(fill(place.old))
    old = place.old_records("orders", "few")

    def stop(*_: Any, **__: Any) -> None:
        raise Stop

    monkeypatch.setattr(STEPS[step], stop)
    with pytest.raises(Stop):
        main(place.command[3:])
    monkeypatch.undo()
    with pytest.raises(RefusedError, match="penstock migrate"):
        place.new_records("orders")
    # Whoever changed the old directory meanwhile is heard.
    with Broker(place.old) as broker:
        broker.publish(b"late", "few")
        broker.delete_topic("empty")
        old["few"] = list(broker.read("few"))
    assert place.migrate("--dry-run")["continues"]
    done = place.migrate()
    assert [one["topic"] for one in done["topics"]] == ["orders", "few"]
    assert place.new_records("orders", "few") == old


def test_what_another_program_wrote_into_a_copied_topic_is_noticed_and_copied_anew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import Producer

    asyncio.run(fill(place.old))
    old = place.old_records("orders", "few")

    def stop(*_: Any, **__: Any) -> None:
        raise Stop

    monkeypatch.setattr(STEPS["before the catalog"], stop)
    with pytest.raises(Stop):
        main(place.command[3:])
    monkeypatch.undo()
    producer = Producer({"bootstrap.servers": place.kafka.bootstrap})
    producer.produce(f"{place.prefix}.default.few-2", b"foreign", b"few/9")
    producer.flush(60)
    place.migrate()
    assert place.new_records("orders", "few") == old


def with_broker(place: Place) -> None:
    place.write(data=str(place.old))


def with_files(place: Place) -> None:
    place.config.write_text(f'[server]\ndata = "{place.new}"\n')


def with_topics(place: Place) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": place.kafka.bootstrap})
    made = admin.create_topics([NewTopic(f"{place.prefix}.default.other-1", 1, 1)])
    for one in made.values():
        one.result(60)


def with_catalog(place: Place) -> None:
    with Broker(
        place.new.with_name("third"), catalog_url=place.postgres.url, catalog_schema=place.schema
    ) as broker:
        broker.create_topic("other")


def without_end(place: Place) -> None:
    with Served(place.old) as served:
        with penstock.connect(f"http://127.0.0.1:{served.http_port}") as client:
            client.publish(b"x", "few")
        served.kill()


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (with_broker, "set [server] data to another directory"),
        (with_files, '[log] backend = "kafka"'),
        (with_topics, "choose another [kafka] prefix"),
        (with_catalog, "choose another [catalog] schema"),
        (without_end, "start a broker on"),
    ],
)
def test_what_cannot_be_migrated_is_refused(
    place: Place, prepare: Callable[[Place], None], says: str
) -> None:
    asyncio.run(fill(place.old))
    prepare(place)
    for flags in (["--dry-run"], []):
        assert says in place.refused(*flags)


def test_a_directory_that_a_broker_holds_is_refused(place: Place) -> None:
    with Served(place.old) as served:
        assert f"is open in process {served.pid}: stop that broker" in place.refused()


def test_a_migrated_directory_is_not_migrated_over_the_broker_that_uses_it(place: Place) -> None:
    asyncio.run(fill(place.old))
    place.migrate()
    assert "was migrated to" in place.refused()
    place.write(prefix=place.kafka.new_prefix())  # the same catalog, other topics
    assert "was migrated to" in place.refused()
    place.write(schema=place.postgres.new_schema(), data=f"{place.new}-2")
    assert "choose another [kafka] prefix" in place.refused()


def test_records_that_only_the_history_has_are_left_only_if_that_is_asked_for(
    place: Place,
) -> None:
    world = TieringWorld(place.old.parent)
    place.old = world.data

    async def make() -> None:
        async with world.broker() as broker:
            await world.create(broker)
            await world.publish(broker)
            await keep(broker)

    asyncio.run(make())
    with open_source(place.old) as source:
        (topic,) = source.topics
        assert topic.history_records == topic.first > 0
        with pytest.raises(RefusedError, match="pipeline run archive"):
            plan_topics(source, Wishes())
        (plan,) = plan_topics(source, Wishes(without_history=True))
        assert plan.notes[0] == f"{topic.first} records stay behind in the history"
        assert not plan.settings.history
    assert "--without-history" in place.refused()
    done = place.migrate("--without-history")
    assert done["topics"][0]["first"] == topic.first
