"""Ways around a rule that nobody thinks of first: does a denied record stay hidden there, too?"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from penstock.core.access import parse_rule
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect, Publish
from penstock.mqtt.reasons import Reason
from tests.access.test_http_rules import as_user, names
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.doors.wire import Wire
from tests.http.asking import Answer, Asking
from tests.waiting import wait_until

JOBS = "/v1/topics/jobs"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """alice is admin, bob and carl are clients; bob may not have what is under `hr`."""
    data = tmp_path_factory.mktemp("data")
    add_users(data, alice="alice", bob="bob", carl="carl")
    with Hosted(data) as hosted:
        access = hosted.exchange.engine.access
        rule = parse_rule("deny receive,read hr/#")
        hosted.run(lambda server: access.roles.add_rules([rule], user="bob"))
        with Asking(hosted.ports["http"]) as client:
            assert client.ask("PUT", JOBS, {}, **as_user("alice")).status == 201
            messages = [{"payload": "5000", "name": name} for name in ("hr/pay", "it/print")]
            assert client.ask("POST", f"{JOBS}/records", messages, **as_user("carl")).status == 200
        yield hosted


@pytest.fixture
def client(broker: Hosted) -> Iterator[Asking]:
    with Asking(broker.ports["http"]) as asking:
        yield asking


def login(broker: Hosted, user: str) -> Wire:
    wire = Wire(broker.port, f"of-{user}", MQTT_5)
    wire.send(Connect(wire.client_id, version=MQTT_5, username=user, password=user.encode()))
    assert wire.expect(Connack).reason == Reason.SUCCESS
    return wire


def test_a_dead_letter_is_denied_to_whom_its_record_was_denied(
    broker: Hosted, client: Asking
) -> None:
    given = client.ask("POST", f"{JOBS}/groups/g/fetch", {"deliveries_max": 1}, **as_user("carl"))
    assert names(given) == ["hr/pay", "it/print"]
    with login(broker, "bob") as bob, login(broker, "alice") as alice:
        for wire in (bob, alice):
            assert wire.subscribe("jobs.dead/#", qos=1).reasons == (1,)
        back = {"receipt": given.json["receipt"]}
        assert client.ask("POST", f"{JOBS}/groups/g/nack", back, **as_user("carl")).status == 200
        client.ask("POST", f"{JOBS}/groups/g/fetch", {}, **as_user("carl"))  # buries them
        both = ["jobs.dead/hr/pay", "jobs.dead/it/print"]
        assert [alice.receive().name for _ in both] == both
        assert [one.name for one in bob.settle() if isinstance(one, Publish)] == both[1:]
    with login(broker, "bob") as bob:
        bob.subscribe_feed("jobs.dead/#", **{"from": "earliest"})
        assert bob.receive().name == both[1]
    for user, expected in (("bob", both[1:]), ("carl", both)):
        read = client.ask("GET", f"{JOBS}.dead/records?from=earliest", **as_user(user))
        assert names(read) == expected
    question = "user=bob&action=read&name=jobs.dead/hr/pay&topic=jobs.dead"
    answer = client.ask("GET", f"/v1/access/check?{question}", **as_user("alice")).json
    assert answer == {"allowed": False, "rule": "deny receive,read hr/#", "source": "user bob"}


def test_a_dead_letter_of_dead_letters_is_denied_to_whom_the_first_record_was_denied(
    client: Asking,
) -> None:
    topic = "/v1/topics/deep"
    assert client.ask("PUT", topic, {}, **as_user("alice")).status == 201
    messages = [{"payload": "5000", "name": name} for name in ("hr/pay", "it/print")]
    client.ask("POST", f"{topic}/records", messages, **as_user("carl"))
    for depth in range(3):
        fetch, nack = f"{topic}/groups/g/fetch", f"{topic}/groups/g/nack"
        given = client.ask("POST", fetch, {"deliveries_max": 1}, **as_user("carl"))
        assert len(names(given)) == 2, depth
        client.ask("POST", nack, {"receipt": given.json["receipt"]}, **as_user("carl"))
        client.ask("POST", fetch, {}, **as_user("carl"))  # buries them
        topic += ".dead"
        letters = names(client.ask("GET", f"{topic}/records", **as_user("carl")))
        read = client.ask("GET", f"{topic}/records", **as_user("bob"))
        assert names(read) == [one for one in letters if one.endswith("it/print")], topic
        question = f"user=bob&action=read&name={quote(letters[0])}&topic={topic.split('/')[-1]}"
        answer = client.ask("GET", f"/v1/access/check?{question}", **as_user("alice")).json
        assert answer == {"allowed": False, "rule": "deny receive,read hr/#", "source": "user bob"}


def test_nobody_binds_names_of_others_to_a_topic_of_their_own(
    broker: Hosted, client: Asking
) -> None:
    """Whoever could would read them there, and take them from the topic that had them."""
    roles = broker.exchange.engine.access.roles
    assert client.ask("PUT", "/v1/topics/theirs", {}, **as_user("alice")).status == 201
    texts = ("allow manage topic:mine", "allow manage own/#", "deny manage own/not/#")
    for text in (*texts, "allow manage theirs/#", "deny manage topic:Theirs"):
        broker.run(lambda server, text=text: roles.add_rules([parse_rule(text)], user="carl"))
    assert client.ask("PUT", "/v1/topics/mine", {}, **as_user("carl")).status == 201
    for filter, user, status in (
        ("hr/#", "carl", 403),
        ("#", "carl", 403),
        ("own/not/+", "carl", 403),
        ("own/#", "carl", 403),
        ("theirs/#", "carl", 403),
        ("own/yes/#", "carl", 200),
        ("hr/#", "alice", 200),
    ):
        body = {"filter": filter, "topic": "mine"}
        answer = client.ask("POST", "/v1/bindings", body, **as_user(user))
        assert answer.status == status, (filter, answer)
        if status == 403:
            assert f"'allow manage {filter}'" in answer.detail


def test_a_trial_of_a_redrive_says_nothing_about_dead_letters_that_are_denied(
    broker: Hosted, client: Asking
) -> None:
    group = f"{JOBS}/groups/probed"
    given = client.ask("POST", f"{group}/fetch", {"deliveries_max": 1}, **as_user("carl"))
    back = {"receipt": given.json["receipt"]}
    assert client.ask("POST", f"{group}/nack", back, **as_user("carl")).status == 200
    client.ask("POST", f"{group}/fetch", {}, **as_user("carl"))  # buries them
    access = broker.exchange.engine.access
    rule = parse_rule("allow manage topic:jobs")
    broker.run(lambda server: access.roles.add_rules([rule], user="bob"))

    def counted(user: str, where: str) -> int:
        asked = {"dry_run": True, "where": where}
        answer = client.ask("POST", f"{group}/redrive", asked, **as_user(user))
        assert answer.status == 200, answer
        return int(answer.json["records"])

    expressions = ("payload = '5000'", "name = 'jobs.dead/hr/pay'")
    assert [counted("alice", where) for where in expressions] == [2, 1]
    assert [counted("bob", where) for where in expressions] == [1, 0]


def test_an_expression_says_nothing_about_records_that_are_denied(client: Asking) -> None:
    def asked(where: str) -> Answer:
        path = f"{JOBS}/records?from=earliest&where={quote(where)}"
        return client.ask("GET", path, **as_user("bob"))

    found, missed, broken = (
        asked("name = 'hr/pay'"),
        asked("name = 'hr/play'"),
        asked("payload / 0"),
    )
    assert names(found) == names(missed) == []
    assert found.json["next_offset"] == missed.json["next_offset"]
    assert broken.status == 400 or names(broken) == []


def test_only_admins_are_shown_the_readers_of_others(client: Asking) -> None:
    assert client.ask("PUT", f"{JOBS}/consumers/slow", {}, **as_user("carl")).status == 201
    shown = client.ask("GET", "/v1/overview", **as_user("alice")).json["slowest"]
    assert "slow" in [one["reader"] for one in shown]
    assert client.ask("GET", "/v1/overview", **as_user("bob")).json["slowest"] == []


def test_a_rule_that_comes_while_a_reader_waits_counts_for_what_it_is_given(
    broker: Hosted, client: Asking
) -> None:
    access = broker.exchange.engine.access
    assert client.ask("PUT", f"{JOBS}/consumers/late", {"from": "latest"}, **as_user("carl"))
    paths = (f"{JOBS}/consumers/late/fetch", f"{JOBS}/groups/late/fetch")
    client.ask("POST", paths[1], {"from": "latest"}, **as_user("carl"))

    def wait(path: str) -> list[str]:
        with Asking(broker.ports["http"]) as waiting:
            return names(waiting.ask("POST", path, {"wait": 30}, **as_user("carl")))

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(wait, path) for path in paths]
        wait_until(lambda: len(broker.call(broker.http._principals)) >= 2)
        rule = parse_rule("deny read late/#")
        (added,) = broker.run(lambda server: access.roles.add_rules([rule], user="carl"))
        for name in ("late/secret", "it/late"):
            message = {"payload": "x", "name": name}
            assert client.ask("POST", f"{JOBS}/records", message, **as_user("alice")).status == 200
        assert [one.result() for one in waiting] == [["it/late"], ["it/late"]]
    broker.run(lambda server: access.roles.remove_rule(added.rule_id))


@pytest.mark.parametrize("change", ["remove", "demote"])
def test_who_waits_for_a_trace_and_is_no_longer_an_admin_is_shown_nothing(
    broker: Hosted, client: Asking, change: str
) -> None:
    admin = {"password": "ada", "roles": ["admin"]}
    assert client.ask("PUT", "/v1/users/ada", admin, **as_user("alice")).status in (200, 201)
    begun = client.ask("POST", "/v1/traces", {"names": "traced"}, **as_user("alice"))
    trace = f"/v1/traces/{begun.json['trace']}"
    with ThreadPoolExecutor(1) as pool, Asking(broker.ports["http"]) as waiting:
        asked = pool.submit(waiting.ask, "GET", f"{trace}?wait=30", **as_user("ada"))
        wait_until(lambda: "ada" in [one.user for one in broker.call(broker.http._principals)])
        if change == "remove":
            assert client.ask("DELETE", "/v1/users/ada", **as_user("alice")).status == 204
        else:
            fewer = {"roles": ["client"]}
            assert client.ask("PUT", "/v1/users/ada", fewer, **as_user("alice")).status == 200
        message = {"payload": "x", "name": "traced"}
        assert client.ask("POST", f"{JOBS}/records", message, **as_user("alice")).status == 200
        answer = asked.result()
    assert answer.status == (401 if change == "remove" else 403)
    assert client.ask("DELETE", trace, **as_user("alice")).status == 204
