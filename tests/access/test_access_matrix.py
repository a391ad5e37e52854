"""Is every decision about access, through every door and at every moment, that of a plain model?

Users of two tenants, with rules that a seed generated, publish and read in every way under names
that are near the rules, before and after rules, roles, users and keys change. Each tenant publishes
under the same names, and each payload names its tenant, so what leaks is seen.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.mqtt.kinds import MQTT_3_1_1
from penstock.mqtt.packets import Publish, Subscription, Will
from tests.access.matrix_clients import (
    READ_ONCE,
    Lasting,
    LiveMqtt,
    Question,
    Record,
    Stream,
    Who,
    accepted,
    collect,
    enter,
    granted,
    may_read,
    may_receive,
    publish_mqtt_3,
    publish_mqtt_5,
)
from tests.access.matrix_world import RulesWorld
from tests.access.rule_model import END, TOPICS, USERS, Policy, Rule, Spot, place
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire, kept
from tests.waiting import WAIT_S

pytestmark = pytest.mark.slow

SEED = 14
TRIED = 6  # names that each user publishes to in each way
UNACKED = 12  # names that are sent to a session which does not acknowledge
WILLS = 3  # of each user at a moment
DECISIONS_MIN = 20_000


class Matrix:
    """Compares one moment after the other; what lasts over moments is opened at the beginning."""

    def __init__(self, world: RulesWorld) -> None:
        self.world = world
        self.broker = world.broker
        self.lasting = [reader for who in world.people for reader in self._open(who)]
        self.kept: dict[str, list[str]] = {}  # filters of sessions that are away, by their owner
        self.unacked: dict[str, tuple[list[str], list[Record]]] = {}  # and what was sent to them
        self.wills: list[tuple[Who, str, Record, Wire]] = []
        self.producers: dict[tuple[str, str], str] = {}  # ids by tenant and topic
        self.at_us = 0
        self.steady = {}  # who publishes over one connection, whatever changes
        for who in (*world.admins.values(), *world.people):
            wire, reason = enter(self.broker, who.login, f"{who.label}-steady")
            assert reason == 0
            self.steady[who.tenant, who.label] = wire
        # Offsets by tenant and topic: where the moment began, and where sessions were left.
        self.since = {tenant: world.ends(tenant) for tenant in USERS}
        self.left = self.since
        self.leave()

    def policy(self, who: Who) -> Policy:
        return self.world.policies[who.tenant]

    @property
    def alive(self) -> list[Who]:
        return [who for who in self.world.people if who.is_alive]

    def _open(self, who: Who) -> Iterator[Lasting]:
        world, broker = self.world, self.broker
        yield LiveMqtt(broker, who, "live", world.names)
        yield LiveMqtt(broker, who, "live-3.1.1", world.wildcards, MQTT_3_1_1)
        yield LiveMqtt(broker, who, "share", world.wildcards)
        for topic in TOPICS[:2]:
            if self.policy(who).may_ask(who.user, topic):
                yield Stream(broker, who, "sse", topic)
                yield Stream(broker, who, "websocket", topic)

    def leave(self) -> None:
        """Leave sessions and wills behind, to be looked at when the rules have changed."""
        for who in self.alive:
            self._leave_session(who)
            self._leave_unacked(who)
            for number in range(WILLS):
                self._leave_will(who, number)
        self.left = {tenant: self.world.ends(tenant) for tenant in USERS}

    def _leave_session(self, who: Who) -> None:
        client_id = f"{who.label}-kept"
        wire, reason = enter(self.broker, who.login, client_id, properties=kept())
        assert reason == 0
        filters = self.world.names + self.world.wildcards
        self.kept[f"{who.tenant}/{client_id}"] = granted(wire, filters)
        wire.disconnect()

    def _leave_unacked(self, who: Who) -> None:
        """A session that was sent what is retained, and has not acknowledged it."""
        client_id, filters = f"{who.label}-unacked", self.world.names[:UNACKED]
        wire, reason = enter(self.broker, who.login, client_id, properties=kept())
        assert reason == 0
        wanted = [Subscription(one, 1) for one in filters]
        given = accepted(filters, wire.subscribe(*wanted).reasons)
        sent = [one for one in wire.settle() if isinstance(one, Publish)]
        records = [Record(place(one.name), one.payload.decode()) for one in sent]
        self.unacked[f"{who.tenant}/{client_id}"] = (given, records)
        wire.close()

    def _leave_will(self, who: Who, number: int) -> None:
        world = self.world
        client_id, spot = f"{who.label}-will{number}", world.generator.rng.choice(world.placed)
        payload = f"{who.tenant} will {number} of {who.label} after {world.moment} to {spot.name}"
        will = Will(spot.name, payload.encode(), 1)
        wire, reason = enter(self.broker, who.login, client_id, will=will)
        is_allowed = who.may(self.policy(who), "publish", spot, client_id)
        world.compare("will", who, is_allowed, reason == 0)
        if reason == 0:
            self.wills.append((who, client_id, Record(spot, payload), wire))

    # One moment

    def check(self) -> None:
        expected = self._publish_steadily("at once")
        for tenant in USERS:
            expected[tenant] |= self._fire_wills(tenant)
        self.wills.clear()
        for who in self.alive:
            self._read_unacked(who)
        bases = {tenant: self.world.ends(tenant) for tenant in USERS}
        self.at_us = self.broker.exchange.engine.clock.now_us()
        for tenant in USERS:
            self.world.publish(tenant)
        for who in self.world.people:
            records = self.world.stored(who.tenant, bases[who.tenant])
            if who.is_alive or who.is_key:
                self._read_once(who, records, bases[who.tenant])
            if who.is_alive:
                for client_id in (f"{who.label}-once", "+"):  # a wildcard never widens `%c`
                    self._read_retained(who, client_id, records)
                self._read_feed(who, records)
                self._read_kept(who)
            else:
                self._find_locked(who)
        for who in self.alive:
            expected[who.tenant] |= self._publish(who)
        self.leave()
        for tenant, payloads in self._publish_steadily("before a change").items():
            expected[tenant] |= payloads
        self._check_stored(expected)
        self._read_lasting()
        self.since = {tenant: self.world.ends(tenant) for tenant in USERS}
        assert self.world.mistakes == []

    def _fire_wills(self, tenant: str) -> set[str]:
        """Wills of those who may still publish are stored, and only those."""
        expected = set()
        for who, client_id, record, wire in self.wills:
            if who.tenant == tenant:
                wire.close()
                if who.may(self.policy(who), "publish", record.spot, client_id):
                    expected.add(record.payload)
        deadline_s = time.monotonic() + WAIT_S
        while not expected <= self._payloads(tenant) and time.monotonic() < deadline_s:
            self.broker.wait_idle()
        return expected

    def _payloads(self, tenant: str) -> set[str]:
        return {one.payload for one in self.world.stored(tenant, self.since[tenant])}

    def _read_once(self, who: Who, records: list[Record], bases: dict[str, int]) -> None:
        policy = self.policy(who)
        for way, read in READ_ONCE.items():
            for topic in TOPICS:
                key = f"{way}-{who.label}-{self.world.moment}".replace(" ", "-")
                asked = Question(self.world.asker, who.login, topic, bases[topic], key)
                status, found = read(asked)
                held = [record for record in records if record.spot.topic == topic]
                is_open = policy.may_ask(who.user, topic)
                wanted = 401 if not who.is_alive else 200 if is_open else 403
                self.world.compare(f"ask {way}", who, wanted, 200 if status == 201 else status)
                expected = may_read(policy, who, topic, held) if is_open else set()
                self.world.compare(way, who, expected, found, len(held))

    def _read_retained(self, who: Who, client_id: str, records: list[Record]) -> None:
        """And what SUBACK says about every filter."""
        world, policy = self.world, self.policy(who)
        filters = world.names + world.wildcards
        wire, reason = enter(self.broker, who.login, client_id)
        assert reason == 0
        given = accepted(filters, wire.subscribe(*filters).reasons)
        wanted = [one for one in filters if policy.allows_filter(who.user, one, client_id)]
        world.compare("subscribe", who, set(wanted), set(given), len(filters))
        retained = [record for record in records if record.spot in world.placed]
        retained = [one for one in retained if not one.payload.endswith(f" in {one.spot.topic}")]
        expected = may_receive(policy, who, client_id, wanted, retained)
        world.compare("retained", who, expected, collect(wire, expected), len(retained))
        wire.disconnect()

    def _read_feed(self, who: Who, records: list[Record]) -> None:
        world, policy = self.world, self.policy(who)
        client_id, filters = f"{who.label}-once", world.wildcards[:8] + world.names[:12]
        wire, reason = enter(self.broker, who.login, client_id)
        assert reason == 0
        start = datetime.fromtimestamp(self.at_us / 1e6, UTC).isoformat()
        given = accepted(filters, wire.subscribe_feed(*filters, from_=start).reasons)
        wanted = [one for one in filters if policy.allows_filter(who.user, one, client_id)]
        world.compare("subscribe from", who, set(wanted), set(given), len(filters))
        expected = may_receive(policy, who, client_id, wanted, records)
        world.compare("from", who, expected, collect(wire, expected), len(records))
        wire.disconnect()

    def _read_kept(self, who: Who) -> None:
        """A session that subscribed before the rules changed."""
        client_id = f"{who.label}-kept"
        records = self.world.stored(who.tenant, self.left[who.tenant])
        filters = self.kept[f"{who.tenant}/{client_id}"]
        expected = may_receive(self.policy(who), who, client_id, filters, records)
        wire = self._return(who, client_id)
        self.world.compare("kept", who, expected, collect(wire, expected), len(records))
        wire.disconnect()

    def _read_unacked(self, who: Who) -> None:
        """What was sent once is sent again only if it may still be received."""
        policy, client_id = self.policy(who), f"{who.label}-unacked"
        filters, sent = self.unacked[f"{who.tenant}/{client_id}"]
        later = self.world.stored(who.tenant, self.left[who.tenant])
        expected = may_receive(policy, who, client_id, filters, later)
        again = [one for one in sent if who.may(policy, "receive", one.spot, client_id)]
        expected |= {one.payload for one in again}
        wire = self._return(who, client_id)
        found = collect(wire, expected)
        self.world.compare("unacked", who, expected, found, len(sent) + len(later))
        wire.disconnect()

    def _return(self, who: Who, client_id: str) -> Wire:
        """To a session that was left behind."""
        wire, reason = enter(
            self.broker, who.login, client_id, clean_start=False, properties=kept()
        )
        assert reason == 0
        return wire

    def _find_locked(self, who: Who) -> None:
        """Few times with a password: the broker answers a wrong one after a second."""
        wire, reason = enter(self.broker, who.login, f"{who.label}-late")
        wire.close()
        self.world.compare("log in", who, True, reason != 0)
        for spot in self.world.placed if who.is_key else self.world.placed[:1]:
            path = f"/v1/topics/{spot.topic}/records"
            body = {"name": spot.name, "payload": "too late"}
            for method in ("GET", "POST"):
                status, _ = self.world.asker.ask(who.login, method, path, body)
                self.world.compare("log in", who, 401, status)

    # Publishing

    def _tried(self, who: Who, way: str, spots: list[Spot], qos: int = 1) -> list[Record]:
        head = f"{who.tenant} {self.world.moment} {way} of {who.label} to"
        tried = self.world.generator.rng.sample(spots, min(TRIED, len(spots)))
        return [Record(spot, f"{head} {spot.name} in {spot.topic}", qos) for spot in tried]

    def _publish(self, who: Who) -> set[str]:
        """Publish in every way; what has to be stored."""
        expected: set[str] = set()
        client_id, placed = f"{who.label}-once", self.world.placed
        for qos in range(3):
            tried = self._tried(who, f"mqtt-3.1.1-qos{qos}", placed, qos)
            publish_mqtt_3(self.broker, who, client_id, tried)
            expected |= self._allowed(who, tried, client_id)
        wire, reason = enter(self.broker, who.login, client_id)
        assert reason == 0
        for qos, retain in ((0, False), (1, False), (2, False), (1, True)):
            way = f"mqtt-5-qos{qos}{'-retained' * retain}"
            tried = self._tried(who, way, placed, qos)
            done = publish_mqtt_5(wire, tried, retain=retain)
            allowed = self._allowed(who, tried, client_id)
            if qos:
                self.world.compare(way, who, allowed, done, len(tried))
            expected |= allowed
        wire.disconnect()
        return expected | self._publish_json(who) | self._produce(who)

    def _publish_steadily(self, when: str) -> dict[str, set[str]]:
        """Where nothing is subscribed to since the last time, routes are those of then."""
        expected = {}
        for tenant, admin in self.world.admins.items():
            head = f"{tenant} {self.world.moment} {when} to"
            records = [Record(spot, f"{head} {spot.name}") for spot in self.world.placed]
            expected[tenant] = publish_mqtt_5(self.steady[tenant, admin.label], records)
            assert len(expected[tenant]) == len(records)
        for who in self.alive:
            tried = self._tried(who, when, self.world.placed)
            done = publish_mqtt_5(self.steady[who.tenant, who.label], tried)
            allowed = self._allowed(who, tried, f"{who.label}-steady")
            self.world.compare("steady", who, allowed, done, len(tried))
            expected[who.tenant] |= allowed
        return expected

    def _allowed(self, who: Who, tried: list[Record], client_id: str = "") -> set[str]:
        self.world.decisions["publish"] += len(tried)
        policy = self.policy(who)
        may = [who.may(policy, "publish", one.spot, client_id) for one in tried]
        return {one.payload for one, is_allowed in zip(tried, may, strict=True) if is_allowed}

    def _publish_json(self, who: Who) -> set[str]:
        tried = self._tried(who, "json", self.world.placed + self.world.misplaced)
        done = set()
        for record in tried:
            body = {"name": record.spot.name, "payload": record.payload}
            path = f"/v1/topics/{record.spot.topic}/records"
            status, answer = self.world.asker.ask(who.login, "POST", path, body)
            assert status in (200, 201, 403), answer
            if status < 300:
                done.add(record.payload)
        allowed = self._allowed(who, tried)
        self.world.compare("json", who, allowed, done, len(tried))
        return allowed

    def _produce(self, who: Who) -> set[str]:
        """With the id of whoever could register first: it gives no right."""
        done, tried, asker = set(), [], self.world.asker
        for topic in TOPICS[:2]:
            record = Record(
                Spot(topic, topic), f"{who.tenant} {self.world.moment} {who.label} {topic}"
            )
            tried.append(record)
            status, answer = asker.json(who.login, "POST", "/producer/register", {"topic": topic})
            is_allowed = who.may(self.policy(who), "publish", record.spot)
            self.world.compare("register", who, is_allowed, status == 200)
            if status == 200:
                self.producers.setdefault((who.tenant, topic), answer["producer_id"])
            producer = self.producers.get((who.tenant, topic), "")
            body = {"topic": topic, "producer_id": producer, "message": record.payload}
            status, _ = asker.ask(who.login, "POST", "/producer/produce", body)
            if status == 200:
                done.add(record.payload)
        allowed = self._allowed(who, tried)
        self.world.compare("produce", who, allowed, done, len(tried))
        return allowed

    def _check_stored(self, expected: dict[str, set[str]]) -> None:
        for tenant in USERS:
            head = f"{tenant} {self.world.moment} "
            by_admin = {f"{head}{spot.name}" for spot in self.world.placed}
            by_admin |= {f"{head}{one.name} in {one.topic}" for one in self.world.misplaced}
            found = self._payloads(tenant)
            self.world.compare(
                "stored", self.world.admins[tenant], expected[tenant] | by_admin, found, len(found)
            )

    def _read_lasting(self) -> None:
        records = {one: self.world.stored(one, self.since[one]) for one in USERS}
        for tenant in USERS:
            for topic in TOPICS:
                body = {"name": END, "payload": f"end {self.world.moment} {topic}"}
                self.world.admin(tenant, "POST", f"/v1/topics/{topic}/records", body)
        for reader in list(self.lasting):
            who, policy = reader.who, self.policy(reader.who)
            if not who.is_alive:
                self.world.compare(f"{reader.way}, ended", who, set(), reader.rest())
                reader.close()
                self.lasting.remove(reader)
                continue
            is_told = who.may(policy, reader.action, Spot(reader.topic, END))
            end = f"end {self.world.moment} {reader.topic}" if is_told else ""
            judged = [one for one in records[who.tenant] if reader.is_about(one)]
            expected = reader.expected(policy, judged)
            found = {one for one in reader.collect(expected, end) if not one.startswith("end ")}
            self.world.compare(reader.way, who, expected, found, len(judged))

    def close(self) -> None:
        for reader in self.lasting:
            reader.close()
        for wire in (*self.steady.values(), *(one[-1] for one in self.wills)):
            wire.close()
        self.world.asker.close()


def add_rules(world: RulesWorld) -> None:
    for policy in world.policies.values():
        for user in USERS[policy.tenant]:
            rules = [world.generator.rule(allows=user == "carl") for _ in range(2)]
            world.add_rules(policy.tenant, policy.own[user], rules, user)
    everything = ("publish", "subscribe", "receive", "read")
    own = world.policies["default"].own["dora"]
    world.add_rules("default", own, [Rule(False, everything, "topic:hr")], "dora")


def remove_rules(world: RulesWorld) -> None:
    for policy in world.policies.values():
        for user in USERS[policy.tenant]:
            world.remove_rule(policy.tenant, policy.own[user], policy.own[user][-1], user=user)
        for role in ("first", "second"):
            rules = policy.roles[role]
            world.remove_rule(policy.tenant, rules, rules[0], role=role)


def take_roles(world: RulesWorld) -> None:
    world.set_roles("default", "carl", ["third"])
    world.set_roles("default", "eve", ["reader"])
    world.set_roles("default", "fred", [])
    world.set_roles("acme", "carl", ["client"])
    world.replace_role("default", "third", [world.generator.rule() for _ in range(7)])


def revoke(world: RulesWorld) -> None:
    world.remove_role("default", "first")  # before wills are published for a key that ends
    by_label = {(who.tenant, who.label): who for who in world.people}
    world.revoke_key(by_label["default", "bob-key"])
    world.remove_user(by_label["default", "dora"])
    world.remove_user(by_label["acme", "carl"])


CHANGES = {
    "rules added": add_rules,
    "rules removed": remove_rules,
    "roles taken": take_roles,
    "users and keys removed": revoke,
}


def test_every_decision_of_every_door_is_that_of_the_model_before_and_after_changes(
    tmp_path: Path,
) -> None:
    print(f"seed {SEED}")
    with Hosted(tmp_path) as broker:
        world = RulesWorld(broker, SEED)
        matrix = Matrix(world)
        matrix.check()
        for moment, change in CHANGES.items():
            change(world)
            world.moment = moment
            matrix.check()
        matrix.close()
    decisions = world.decisions.total()
    print(f"{decisions} decisions, {world.allowed} allowed: {world.decisions}")
    assert decisions >= DECISIONS_MIN
    assert 0.2 < world.allowed / decisions < 0.8, "the rules allow some things and deny others"
