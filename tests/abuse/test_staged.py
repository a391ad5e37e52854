"""Can a staged upload grow the broker's memory, or touch what another user stages?"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.log.format.batch import Batch
from penstock.log.format.builder import BatchBuilder
from penstock.log.format.marks import MARK_SPARK_BATCH
from penstock.log.staging.area import mark_key
from penstock.model.limits import MIB
from penstock.model.record import KIND_BYTES, KIND_SHIFT
from tests.abuse.healthy import Beside
from tests.appends import add
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.http.asking import Answer, Asking


def source_of(topic_id: int) -> str:
    """Each test has a source of its own, which both users call the same."""
    return f"query-{topic_id}"


def login(user: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:secret".encode()).decode()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("staged")
    add_users(data, alice="secret", mallory="secret")
    with Served(data) as broker:
        yield broker


@pytest.fixture
def topic_id(served: Served, request: pytest.FixtureRequest) -> int:
    with Asking(served.http_port) as client:
        topic = request.node.name[5:60]
        return int(
            client.ask("PUT", f"/v1/topics/{topic}", Authorization=login("alice")).json["id"]
        )


def batch(topic_id: int, number: int, at: int, payloads: list[bytes]) -> Batch:
    builder = BatchBuilder(0)
    add(builder, "staged", payloads, 0, 1 | KIND_BYTES << KIND_SHIFT)
    builder.add_mark(MARK_SPARK_BATCH, mark_key(source_of(topic_id), number, "0", at), 0)
    made = builder.encode(0, 0, 0)
    made.compress()
    return made


def ask(served: Served, user: str, path: str, body: Any) -> Answer:
    with Asking(served.http_port) as client:
        client._socket.settimeout(120)
        return client.ask("POST", f"/v1/staged{path}", body, Authorization=login(user))


def stage(served: Served, user: str, topic_id: int, number: int, *batches: Batch) -> Answer:
    body = b"".join(bytes(part) for one in batches for part in one.to_bytes())
    query = f"?source={source_of(topic_id)}&number={number}&part=0&topic_id={topic_id}"
    return ask(served, user, query, body)


def hand_over(served: Served, user: str, number: int, file: Any) -> Answer:
    source = source_of(file["topic_id"])
    asked = {"source": source, "number": number, "files": [file], "is_only": False}
    return ask(served, user, "/handover", asked)


def stored(served: Served, request: pytest.FixtureRequest) -> list[str]:
    with Asking(served.http_port) as client:
        path = f"/v1/topics/{request.node.name[5:60]}/records"
        answer = client.ask("GET", path, Authorization=login("alice"))
        return [record["payload"] for record in answer.json["records"]]


def test_a_file_that_grows_beyond_measure_is_refused(served: Served, topic_id: int) -> None:
    zeros = [bytes(4 * MIB - 1)]
    batches = [batch(topic_id, 0, at, zeros) for at in range(320)]
    with Beside.http(served) as watching:
        answer = stage(served, "alice", topic_id, 0, *batches)
    assert answer.status == 413, answer
    watching.check(96 * MIB)


def test_a_file_that_is_well_compressed_does_not_grow_the_memory(
    served: Served, topic_id: int
) -> None:
    zeros = [bytes(4 * MIB - 1)]
    batches = [batch(topic_id, 1, at, zeros) for at in range(100)]
    with Beside.http(served) as watching:
        answer = stage(served, "alice", topic_id, 1, *batches)
    assert answer.status == 201, answer
    watching.check(96 * MIB)


def test_nobody_ends_the_source_of_another(
    served: Served, topic_id: int, request: pytest.FixtureRequest
) -> None:
    ahead = 1 << 40
    file = stage(served, "mallory", topic_id, ahead, batch(topic_id, ahead, 0, [b"ended"])).json
    assert hand_over(served, "mallory", ahead, file).json == {"is_new": True}
    for number in (2, 3):
        file = stage(
            served, "alice", topic_id, number, batch(topic_id, number, 0, [b"%d" % number])
        ).json
        assert hand_over(served, "alice", number, file).json == {"is_new": True}
        assert hand_over(served, "alice", number, file).json == {"is_new": False}
    assert stored(served, request) == ["ended", "2", "3"]


def test_nobody_hands_over_or_discards_the_files_of_another(
    served: Served, topic_id: int, request: pytest.FixtureRequest
) -> None:
    file = stage(served, "alice", topic_id, 4, batch(topic_id, 4, 0, [b"hers"])).json
    assert hand_over(served, "mallory", 4, file).status == 409
    ask(served, "mallory", "/discard", {"source": source_of(topic_id), "files": [file]})
    assert hand_over(served, "alice", 4, file).json == {"is_new": True}
    assert stored(served, request) == ["hers"]


def test_a_mark_of_another_user_does_not_count_as_ones_own(
    served: Served, topic_id: int, request: pytest.FixtureRequest
) -> None:
    """Both call their sources the same, and hand over the same number and part."""
    hers = stage(served, "alice", topic_id, 5, batch(topic_id, 5, 0, [b"hers"])).json
    his = stage(served, "mallory", topic_id, 1 << 41, batch(topic_id, 1 << 41, 0, [b"his"])).json
    assert hand_over(served, "mallory", 1 << 41, his).json == {"is_new": True}
    assert hand_over(served, "alice", 5, hers).json == {"is_new": True}
    assert sorted(stored(served, request)) == ["hers", "his"]


def test_a_rule_that_comes_after_staging_counts_when_the_files_are_handed_over(
    served: Served, topic_id: int, request: pytest.FixtureRequest
) -> None:
    number = 1 << 42
    file = stage(served, "mallory", topic_id, number, batch(topic_id, number, 0, [b"late"])).json
    with Asking(served.http_port) as client:
        rule = {"rules": ["deny publish staged"], "user": "mallory"}
        added = client.ask("POST", "/v1/rules", rule, Authorization=login("alice"))
        (denied,) = added.json["rules"]
        refused = hand_over(served, "mallory", number, file)
        assert refused.status == 403 and "may not publish to 'staged'" in refused.detail
        assert stored(served, request) == []
        path = f"/v1/rules/{denied['id']}"
        assert client.ask("DELETE", path, Authorization=login("alice")).status == 204
    assert hand_over(served, "mallory", number, file).json == {"is_new": True}
    assert hand_over(served, "mallory", number, file).json == {"is_new": False}
    assert stored(served, request) == ["late"]
