"""Does HTTP let everybody do what the rules allow, and nothing else?"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from penstock.core.access import parse_rule
from penstock.doors.http.routing.needs import Needs
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.http.asking import Answer, Asking
from tests.http.events import Events

ARROW = "application/vnd.apache.arrow.stream"
BATCHES = "application/vnd.penstock.batches"


def as_user(user: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{user}".encode()).decode()}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """alice is admin, bob a client; carl reads some names of `orders`; dora may do nothing."""
    data = tmp_path_factory.mktemp("data")
    add_users(data, alice="alice", bob="bob", carl="carl", dora="dora")
    with Hosted(data) as hosted:
        access = hosted.exchange.engine.access
        rules = [parse_rule("allow read orders/eu/#"), parse_rule("allow publish orders/eu/+")]
        hosted.run(lambda server: access.roles.add("europe", rules))
        hosted.run(lambda server: access.set_roles("carl", ["europe"]))
        hosted.run(lambda server: access.set_roles("dora", []))
        with Asking(hosted.ports["http"]) as client:
            assert client.ask("PUT", "/v1/topics/orders", {}, **as_user("alice")).status == 201
            for name in ("orders/eu/1", "orders/us/2", "orders/eu/3", "orders/us/4"):
                stored(client, "alice", name)
        yield hosted


@pytest.fixture
def client(broker: Hosted) -> Iterator[Asking]:
    with Asking(broker.ports["http"]) as asking:
        yield asking


def stored(client: Asking, user: str, name: str, topic: str = "orders") -> Answer:
    message = {"payload": name, "name": name}
    return client.ask("POST", f"/v1/topics/{topic}/records", message, **as_user(user))


def read(client: Asking, user: str, query: str = "", **headers: str) -> Answer:
    return client.ask("GET", f"/v1/topics/orders/records{query}", **as_user(user), **headers)


def names(answer: Answer) -> list[str]:
    return [record["name"] for record in answer.json["records"]]


ALL = ["orders/eu/1", "orders/us/2", "orders/eu/3", "orders/us/4"]
EUROPE = ["orders/eu/1", "orders/eu/3"]


def test_every_route_says_what_it_needs(broker: Hosted) -> None:
    for route in broker.http.router:
        assert isinstance(route.needs, Needs) is not route.is_open, route.pattern


@pytest.mark.parametrize(
    ("user", "statuses"),
    [("alice", (201, 200, 204)), ("bob", (403, 403, 403)), ("dora", (403, 403, 403))],
)
def test_topics_are_managed_by_whoever_may(
    client: Asking, user: str, statuses: tuple[int, int, int]
) -> None:
    path = f"/v1/topics/of-{user}"
    given = [
        client.ask("PUT", path, {}, **as_user(user)).status,
        client.ask("PATCH", path, {"retention_age": "1h"}, **as_user(user)).status,
        client.ask("DELETE", path, **as_user(user)).status,
    ]
    assert tuple(given) == statuses


def test_a_refusal_names_user_action_and_name(client: Asking) -> None:
    answer = client.ask("PUT", "/v1/topics/x", {}, **as_user("bob"))
    assert answer.detail.startswith("user 'bob' may not manage 'x': ask an administrator")
    answer = stored(client, "carl", "orders/us/9")
    assert answer.status == 403
    assert "user 'carl' may not publish to 'orders/us/9'" in answer.detail
    answer = client.ask("POST", "/topics", {"topic_name": "x"}, **as_user("bob"))
    assert answer.status == 403 and answer.json["status"] == "failure"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/users"),
        ("PUT", "/v1/users/eve"),
        ("DELETE", "/v1/users/bob"),
        ("POST", "/v1/users/alice/keys"),
        ("GET", "/v1/keys"),
        ("DELETE", "/v1/keys/x"),
        ("GET", "/v1/sessions"),
        ("GET", "/v1/sessions/x"),
        ("GET", "/v1/subscriptions"),
        ("GET", "/v1/clients"),
        ("GET", "/v1/clients/x"),
        ("DELETE", "/v1/clients/x"),
        ("POST", "/v1/sessions/x/kick"),
        ("DELETE", "/v1/sessions/x"),
        ("GET", "/v1/users/alice"),
        ("GET", "/v1/keys/x"),
        ("GET", "/v1/rules/1"),
    ],
)
@pytest.mark.parametrize("user", ["bob", "carl", "dora"])
def test_only_an_admin_administers(client: Asking, user: str, method: str, path: str) -> None:
    answer = client.ask(method, path, {"password": "x"}, **as_user(user))
    assert answer.status == 403
    assert f"user '{user}' may not {method} '{path}': it needs the role admin" in answer.detail


def test_only_an_admin_reads_the_audit_topic(client: Asking) -> None:
    path = "/v1/topics/$audit/records"
    assert client.ask("PUT", "/v1/users/zoe", {"password": "z"}, **as_user("alice")).status == 201
    assert client.ask("GET", path, **as_user("alice")).status == 200
    for user in ("bob", "carl", "dora"):
        assert client.ask("GET", path, **as_user(user)).status == 403


def test_records_are_filtered_one_by_one_and_positions_move_over_the_others(
    client: Asking,
) -> None:
    assert names(read(client, "alice")) == names(read(client, "bob")) == ALL
    answer = read(client, "carl")
    assert names(answer) == EUROPE
    assert (answer.json["next_offset"], answer.json["end_offset"]) == (4, 4)
    assert names(read(client, "carl", "?limit=1")) == EUROPE[:1]
    assert names(read(client, "carl", "?names=orders/%23")) == EUROPE
    assert read(client, "dora").status == 403


def test_arrow_leaves_out_what_may_not_be_read_and_stored_batches_are_refused(
    client: Asking,
) -> None:
    pa = pytest.importorskip("pyarrow")
    answer = read(client, "carl", Accept=ARROW)
    assert pa.ipc.open_stream(answer.body).read_all()["name"].to_pylist() == EUROPE
    refused = read(client, "carl", Accept=BATCHES)
    assert refused.status == 403 and "ask for Arrow or JSON" in refused.detail
    assert read(client, "bob", Accept=BATCHES).status == 200
    assert read(client, "dora", Accept=BATCHES).status == 403


def test_consumers_and_groups_give_only_what_may_be_read(client: Asking) -> None:
    for user, expected in (("bob", ALL), ("carl", EUROPE)):
        consumer = f"/v1/topics/orders/consumers/of-{user}"
        assert client.ask("PUT", consumer, {}, **as_user(user)).status == 201
        answer = client.ask("POST", f"{consumer}/fetch", {}, **as_user(user))
        assert names(answer) == expected and answer.json["next_offset"] == 4
    assert client.ask("PUT", "/v1/topics/orders/consumers/d", {}, **as_user("dora")).status == 403
    group = "/v1/topics/orders/groups/g/fetch"
    assert names(client.ask("POST", group, {}, **as_user("carl"))) == EUROPE
    others = [name for name in ALL if name not in EUROPE]
    assert names(client.ask("POST", group, {}, **as_user("bob"))) == others
    assert client.ask("POST", group, {}, **as_user("dora")).status == 403


def test_nobody_moves_or_removes_the_consumer_or_group_of_another_user(client: Asking) -> None:
    """Who may read less would else move it over what its owner has not seen."""

    def asked(user: str, method: str, path: str, body: object = b"") -> Answer:
        return client.ask(method, f"/v1/topics/orders/{path}", body, **as_user(user))

    assert asked("bob", "PUT", "consumers/mine", {}).status == 201
    assert asked("bob", "POST", "groups/ours/fetch", {"limit": 1}).status == 200
    for method, path, body in (
        ("POST", "consumers/mine/fetch", {}),
        ("POST", "consumers/mine/commit", {"offset": 3}),
        ("POST", "consumers/mine/seek", {"from": "latest"}),
        ("DELETE", "consumers/mine", b""),
        ("DELETE", "groups/ours", b""),
    ):
        refused = asked("carl", method, path, body)
        assert refused.status == 403 and "belongs to another user" in refused.detail
    assert asked("carl", "PUT", "consumers/mine", {}).json["next_offset"] == 0
    assert names(asked("bob", "POST", "consumers/mine/fetch", {})) == ALL
    assert asked("carl", "POST", "groups/ours/fetch", {}).status == 200, "a group is shared"
    assert asked("alice", "POST", "consumers/mine/seek", {"from": "earliest"}).status == 200
    assert asked("alice", "DELETE", "groups/ours").status == 204

    fields = {"topic": "orders"}
    fields |= client.ask("POST", "/consumer/register", fields, **as_user("bob")).json
    for path in ("/consumer/consume", "/size"):
        refused = client.ask("GET", path, fields, **as_user("carl"))
        assert refused.status == 403 and "belongs to another user" in refused.json["message"]
    answer = client.ask("GET", "/consumer/consume", fields, **as_user("bob"))
    assert answer.json["message"] == ALL[0]


def test_a_group_goes_on_behind_thousands_of_records_that_its_reader_may_not_read(
    client: Asking,
) -> None:
    """It keeps some for others, passes the first ones over, and each fetch gets further."""
    topic, alice = "/v1/topics/many", as_user("alice")
    assert client.ask("PUT", topic, {}, **alice).status == 201
    secret = [{"payload": "s", "name": f"orders/us/{n}"} for n in range(10_000)]
    for messages in (secret, secret, secret, [{"payload": "x", "name": "orders/eu/1"}] * 3):
        assert client.ask("POST", f"{topic}/records", messages, **alice).status == 200
    found: list[str] = []
    reached = [0]
    while len(found) < 3:
        answer = client.ask("POST", f"{topic}/groups/g/fetch", {}, **as_user("carl"))
        found += names(answer)
        reached.append(answer.json["next_offset"])
        assert reached[-1] > reached[-2]
    assert found == ["orders/eu/1"] * 3 and reached[-1] == 30_003
    left = client.ask("POST", f"{topic}/groups/g/fetch", {"limit": 1_000}, **as_user("bob"))
    assert [one["offset"] for one in left.json["records"]] == list(range(29_000, 30_000))
    assert {one["deliveries"] for one in left.json["records"]} == {1}
    receipt = {"receipt": left.json["receipt"]}
    assert client.ask("POST", f"{topic}/groups/g/ack", receipt, **as_user("bob")).status == 200
    for messages in (secret, secret, secret, [{"payload": "x", "name": "orders/eu/2"}]):
        client.ask("POST", f"{topic}/records", messages, **alice)
    patient = client.ask("POST", f"{topic}/groups/g/fetch", {"wait": 30}, **as_user("carl"))
    assert names(patient) == ["orders/eu/2"]  # one that waits goes on by itself


def test_the_queue_gives_only_what_may_be_read_and_registers_whoever_may(client: Asking) -> None:
    def asked(method: str, path: str, user: str, **fields: str) -> Answer:
        return client.ask(method, path, fields, **as_user(user))

    for user, expected in (("bob", ALL), ("carl", EUROPE)):
        answer = asked("POST", "/consumer/register", user, topic="orders")
        consumer = answer.json["consumer_id"]
        for name in expected:
            answer = asked("GET", "/consumer/consume", user, topic="orders", consumer_id=consumer)
            assert answer.json["message"] == name
        answer = asked("GET", "/consumer/consume", user, topic="orders", consumer_id=consumer)
        assert answer.status == 500
    assert asked("POST", "/consumer/register", "dora", topic="orders").status == 403
    assert asked("POST", "/producer/register", "bob", topic="orders").status == 200
    assert asked("POST", "/producer/register", "bob", topic="brand-new").status == 403
    assert asked("POST", "/producer/register", "carl", topic="orders").status == 403
    assert asked("GET", "/topics", "dora").json["topics"] == []
    assert "orders" in asked("GET", "/topics", "carl").json["topics"]


def test_a_stream_gives_only_what_may_be_read_before_and_after_a_change(broker: Hosted) -> None:
    access = broker.exchange.engine.access
    port = broker.ports["http"]
    path = "/v1/topics/orders/stream?from=earliest"
    with Asking(port) as writer:
        assert writer.ask("GET", path, **as_user("dora")).status == 403
        events = Events(port, path, **as_user("carl"))
        assert events.next().kind == "start"
        assert [events.next().data["name"] for _ in EUROPE] == EUROPE
        rule = parse_rule("deny read orders/eu/9")
        (added,) = broker.run(lambda server: access.roles.add_rules([rule]))
        for name in ("orders/eu/9", "orders/us/9", "orders/eu/8"):
            assert stored(writer, "alice", name).status == 200
        assert events.next().data["name"] == "orders/eu/8"
        broker.run(lambda server: access.roles.remove_rule(added.rule_id))
