"""Kill -9 while clients store over HTTP: is anything that was answered lost, or stored twice?"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from penstock import Broker
from tests.doors.served import Served
from tests.http.asking import Asking

CLIENTS = 6
LIVES = 4


class Storing:
    """A client that numbers its requests and sends each again until it is answered."""

    def __init__(self, number: int, broker: Served) -> None:
        self.number = number
        self.answered: dict[int, int] = {}  # request -> its first offset
        self._broker = broker
        self._next = 0

    def run(self, stop: threading.Event) -> None:
        """Until the broker dies; the request it dies with is sent again in the next life."""
        with contextlib.suppress(OSError, EOFError), Asking(self._broker.http_port) as client:
            while not stop.is_set():
                self._store(client)

    def finish(self) -> None:
        with Asking(self._broker.http_port) as client:
            self._store(client)
            for request in random.Random(self.number).sample(sorted(self.answered), 5):
                assert self._ask(client, request) == self.answered[request], "answered otherwise"

    def _store(self, client: Asking) -> None:
        self.answered[self._next] = self._ask(client, self._next)
        self._next += 1

    def _ask(self, client: Asking, request: int) -> int:
        body = [{"payload": f"{self.number}-{request}-{at}"} for at in range(1 + request % 3)]
        key = f"{self.number}-{request}"
        answer = client.ask("POST", "/v1/topics/t/records", body, Idempotency_Key=key)
        assert answer.status == 200, answer
        return int(answer.json["first_offset"])


@pytest.mark.parametrize("seed", [1, 2])
def test_requests_with_a_key_are_stored_once_across_kills(tmp_path: Path, seed: int) -> None:
    noise = random.Random(seed)
    broker = Served(tmp_path / "data").start()
    with Asking(broker.http_port) as client:
        assert client.ask("PUT", "/v1/topics/t").status == 201
    clients = [Storing(number, broker) for number in range(CLIENTS)]
    for _ in range(LIVES):
        stop = threading.Event()
        threads = [threading.Thread(target=one.run, args=(stop,)) for one in clients]
        for thread in threads:
            thread.start()
        goal = sum(len(one.answered) for one in clients) + noise.randrange(100, 400)
        while sum(len(one.answered) for one in clients) < goal:
            threads[0].join(0.01)
        broker.kill()
        stop.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        broker.start()
    for one in clients:
        one.finish()
    broker.stop()
    with Broker(tmp_path / "data") as stored:
        records = {record.offset: record.value for record in stored.read("t")}
    assert max(Counter(records.values()).values()) == 1, f"stored twice (seed {seed})"
    for one in clients:
        for request, offset in one.answered.items():
            for at in range(1 + request % 3):
                assert records[offset + at] == f"{one.number}-{request}-{at}"


def test_produced_messages_that_were_answered_are_there_after_kill(tmp_path: Path) -> None:
    broker = Served(tmp_path / "data").start()
    answered: list[str] = []
    with Asking(broker.http_port) as client:
        producer = client.ask("POST", "/producer/register", {"topic": "q"}).json["producer_id"]
        consumer = client.ask("POST", "/consumer/register", {"topic": "q"}).json["consumer_id"]

    def produce() -> None:
        with contextlib.suppress(OSError, EOFError), Asking(broker.http_port) as client:
            while True:
                text = str(len(answered))
                body = {"topic": "q", "producer_id": producer, "message": text}
                assert client.ask("POST", "/producer/produce", body).status == 200
                answered.append(text)

    thread = threading.Thread(target=produce)
    thread.start()
    while len(answered) < 200:
        thread.join(0.01)
    broker.kill()
    thread.join(30)
    with broker, Asking(broker.http_port) as client:
        got = []
        body = {"topic": "q", "consumer_id": consumer}
        while (answer := client.ask("GET", "/consumer/consume", body)).status == 200:
            got.append(answer.json["message"])
    assert got[: len(answered)] == answered
    assert len(got) <= len(answered) + 1
