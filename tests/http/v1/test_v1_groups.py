"""Groups over HTTP: is each record leased to one reader, and is who waits told in time?"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.doors.hosted import Hosted
from tests.doors.served import Served
from tests.http.asking import Answer, Asking
from tests.waiting import WAIT_S


def payloads(answer: Answer) -> list[Any]:
    assert answer.status == 200, answer
    return [one["payload"] for one in answer.json["records"]]


def test_a_receipt_holds_its_records_until_they_are_answered(client: Asking, name: str) -> None:
    topic, group = f"/v1/topics/{name}", f"/v1/topics/{name}/groups/packers"
    client.ask("PUT", topic)
    client.ask("POST", f"{topic}/records", [{"payload": n} for n in range(4)])
    first = client.ask("POST", f"{group}/fetch", {"limit": 3})
    assert payloads(first) == [0, 1, 2] and first.json["lease_s"] == 30
    assert payloads(client.ask("POST", f"{group}/fetch")) == [3]
    receipt = first.json["receipt"]
    assert client.ask("POST", f"{group}/ack", {"receipt": receipt, "offsets": [1]}).json == {
        "records": 1
    }
    back = {"receipt": receipt, "offsets": [0], "reason": "no boxes"}
    assert client.ask("POST", f"{group}/nack", back).json == {"records": 1}
    late = {"receipt": receipt, "offsets": [2], "delay": 3600}
    assert client.ask("POST", f"{group}/nack", late).json == {"records": 1}
    again = client.ask("POST", f"{group}/fetch")
    assert payloads(again) == [0] and again.json["records"][0]["deliveries"] == 2
    shown = client.ask("GET", group).json
    assert (shown["next_offset"], shown["lag"]) == (4, 0)
    assert [(one["offset"], one["state"]) for one in shown["pending"]] == [
        (0, "leased"),
        (2, "waiting"),
        (3, "leased"),
    ]
    told = client.ask("POST", f"{group}/ack", {"receipt": receipt})
    assert told.status == 409 and receipt in told.detail


def test_what_nobody_can_handle_lies_in_the_dead_letter_topic(client: Asking, name: str) -> None:
    topic, group = f"/v1/topics/{name}", f"/v1/topics/{name}/groups/packers"
    client.ask("PUT", topic)
    client.ask("POST", f"{topic}/records", {"payload": "broken"})
    for _ in range(5):
        receipt = client.ask("POST", f"{group}/fetch").json["receipt"]
        client.ask("POST", f"{group}/nack", {"receipt": receipt, "reason": "no boxes"})
    assert payloads(client.ask("POST", f"{group}/fetch")) == []
    (dead,) = client.ask("GET", f"/v1/topics/{name}.dead/records").json["records"]
    headers = dict(dead["headers"])
    assert dead["payload"] == "broken" and headers["penstock.dead.reason"] == "no boxes"
    assert (headers["penstock.dead.topic"], headers["penstock.dead.group"]) == (name, "packers")


def test_leases_and_deliveries_are_settings_of_the_group_and_of_a_fetch(
    client: Asking, name: str
) -> None:
    topic, group = f"/v1/topics/{name}", f"/v1/topics/{name}/groups/packers"
    client.ask("PUT", topic)
    client.ask("POST", f"{topic}/records", [{"payload": n} for n in range(3)])
    made = client.ask("PUT", group, {"from": 1, "lease_s": 60, "deliveries_max": 2})
    assert made.status == 201 and made.json["next_offset"] == 1
    assert client.ask("PUT", group, {"from": 0, "lease_s": 90}).status == 200
    shown = client.ask("PATCH", group, {"deliveries_max": 0})
    assert (shown.json["lease_s"], shown.json["deliveries_max"]) == (90, 0)
    assert client.ask("PATCH", f"{topic}/groups/none", {"lease_s": 5}).status == 404
    assert client.ask("PATCH", group, {"lease_s": 0}).status == 400

    own = client.ask("POST", f"{group}/fetch", {"limit": 1, "lease_s": 600}).json
    assert own["lease_s"] == 600 and own["records"][0]["offset"] == 1
    other = client.ask("POST", f"{group}/fetch", {"limit": 1}).json
    assert other["lease_s"] == 90
    asked = {"receipt": other["receipt"], "offsets": [2], "lease_s": 5_000}
    assert client.ask("POST", f"{group}/extend", asked).json == {"records": 1, "lease_s": 5000}
    until = {one["offset"]: one["expires_at"] for one in client.ask("GET", group).json["pending"]}
    assert until[2] > until[1] + 4_000_000_000
    told = client.ask("POST", f"{group}/extend", {"receipt": other["receipt"], "offsets": [1]})
    assert told.status == 409 and "does not hold 1" in told.detail


def test_a_redrive_puts_dead_letters_back_once(client: Asking, name: str) -> None:
    topic, group = f"/v1/topics/{name}", f"/v1/topics/{name}/groups/packers"
    client.ask("PUT", topic)
    client.ask("PUT", group, {"deliveries_max": 1})
    sent = {"payload": "broken", "name": f"{name}/7", "headers": [["k", "v"]]}
    client.ask("POST", f"{topic}/records", sent)
    receipt = client.ask("POST", f"{group}/fetch").json["receipt"]
    client.ask("POST", f"{group}/nack", {"receipt": receipt, "reason": "no boxes"})
    dry = client.ask("POST", f"{group}/redrive", {"dry_run": True}).json
    assert (dry["dead_topic"], dry["records"], dry["is_dry_run"]) == (f"{name}.dead", 1, True)
    other = {"where": "headers['penstock.dead.reason'] = 'other'"}
    assert client.ask("POST", f"{group}/redrive", other).json["records"] == 0
    done = client.ask("POST", f"{group}/redrive").json
    assert (done["records"], done["next_offset"], done["is_complete"]) == (1, 1, True)
    assert client.ask("POST", f"{group}/redrive").json["records"] == 0
    before, after = client.ask("GET", f"{topic}/records").json["records"]
    for what in ("name", "payload", "headers"):
        assert before[what] == after[what]


class Waiting:
    """A request that waits, on a connection of its own; the constructor has sent it."""

    def __init__(self, port: int, path: str, body: Any) -> None:
        self._asking = Asking(port)
        self._answers: list[Answer] = []
        self._asking.request("GET" if body is None else "POST", path, b"" if body is None else body)
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def _receive(self) -> None:
        with self._asking:
            self._answers.append(self._asking.answer())

    def answer(self) -> Answer:
        self._thread.join(WAIT_S)
        return self._answers[0]


def has_waiter(broker: Hosted, topic: str) -> bool:
    engine = broker.exchange.engine
    group = engine.groups.get(engine.topics.get(topic), "packers")
    return bool(group.changed._waiters)  # type: ignore[attr-defined]


@pytest.mark.parametrize("gone", ["group", "topic"])
def test_a_reader_that_waits_hears_that_there_is_nothing_to_wait_for(
    broker: Hosted, client: Asking, name: str, gone: str
) -> None:
    topic, group = f"/v1/topics/{name}", f"/v1/topics/{name}/groups/packers"
    client.ask("PUT", topic)
    client.ask("PUT", f"{topic}/consumers/me")
    client.ask("POST", f"{group}/fetch")
    port = broker.ports["http"]
    waiting = [Waiting(port, f"{group}/fetch", {"wait": 60})]
    if gone == "topic":
        waiting.append(Waiting(port, f"{topic}/consumers/me/fetch", {"wait": 60}))
        waiting.append(Waiting(port, f"{topic}/records?from=latest&wait=60", None))
    while not broker.call(lambda: has_waiter(broker, name)):
        pass
    assert client.ask("DELETE", group if gone == "group" else topic).status == 204
    for one in waiting:
        answer = one.answer()
        assert answer.status == 404, answer
        assert answer.json["error"] == ("NotSubscribed" if gone == "group" else "TopicNotFound")


def test_a_reader_that_waits_is_answered_when_the_server_stops(tmp_path: Path) -> None:
    broker = Served(tmp_path).start()
    with Asking(broker.http_port) as client:
        client.ask("PUT", "/v1/topics/t")
        client.ask("POST", "/v1/topics/t/groups/g/fetch")
        waiting = Waiting(broker.http_port, "/v1/topics/t/groups/g/fetch", {"wait": 60})
        client.ask("GET", "/v1/topics/t/groups/g")
    broker.stop()
    assert payloads(waiting.answer()) == []


def test_a_group_of_a_topic_that_is_being_deleted_is_answered_404(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker:
        port = broker.ports["http"]
        with Asking(port) as one, Asking(port) as two, Asking(port) as three:
            for number in range(10):
                topic = f"/v1/topics/t{number}"
                assert one.ask("PUT", topic, {}).status == 201
                one.request("DELETE", topic)
                two.request("PUT", f"{topic}/groups/g", {})
                three.request("POST", f"{topic}/groups/h/fetch", {})
                assert one.answer().status == 204
                assert two.answer().status in (201, 404)
                assert three.answer().status in (200, 404)
