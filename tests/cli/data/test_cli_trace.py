"""`penstock trace`: do people see where their message is?"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.cli.main import main
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire
from tests.http.asking import Asking


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with Hosted(tmp_path_factory.mktemp("data")) as hosted, Asking(hosted.ports["http"]) as asking:
        asking.ask("PUT", "/v1/topics/orders", {})
        asking.ask("POST", "/v1/topics/orders/records", [{"name": "orders/1", "payload": 1}])
        asking.ask("PUT", "/v1/topics/orders/consumers/billing", {"from": "earliest"})
        yield hosted


def at(broker: Hosted) -> str:
    return f"http://127.0.0.1:{broker.ports['http']}"


def following(broker: Hosted, *arguments: str) -> subprocess.Popen[str]:
    """The command, once its trace is on."""
    command = [sys.executable, "-m", "penstock", "trace", *arguments, "--at", at(broker)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert running.stderr.readline().startswith("penstock: tracing")
    return running


def test_a_name_is_followed_live_until_it_is_interrupted(broker: Hosted) -> None:
    with following(broker, "live/1", "--follow") as running, Wire(broker.port, "reader") as wire:
        wire.connect()
        wire.subscribe("live/1", qos=1)
        wire.publish("live/1", b"x", 1)
        wire.receive()
        assert running.stdout is not None
        lines = [running.stdout.readline().split() for _ in range(4)]
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 0
    assert [line[1] for line in lines] == ["received", "stored", "sent", "acknowledged"]
    assert all(line[2] == "default@0" and line[3] == "live/1" for line in lines)
    assert "from reader, QoS 1" in " ".join(lines[0])
    with Asking(broker.ports["http"]) as asking:
        assert asking.ask("GET", "/v1/traces").json == {"traces": []}


def test_a_client_is_followed_as_json_for_some_seconds(broker: Hosted) -> None:
    with following(broker, "device#7", "--seconds", "3", "--json") as running:
        with Wire(broker.port, "device#7") as wire:
            wire.connect()
            wire.publish("from/it", b"x", 1)
        out, _ = running.communicate(timeout=60)
        assert running.returncode == 0
    events = [json.loads(line) for line in out.splitlines()]
    assert [one["what"] for one in events] == ["received", "stored"]
    assert {one["client"] for one in events} == {"device#7"}


def test_a_record_is_shown_with_its_readers(
    broker: Hosted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "orders@0", "--at", at(broker)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "name        orders/1" in lines
    assert lines[-1].split() == ["billing", "consumer", "waiting", "0"]
    assert main(["trace", "orders@0", "--json", "--at", at(broker)]) == 0
    assert json.loads(capsys.readouterr().out)["readers"][0]["reader"] == "billing"


def test_a_record_that_does_not_exist_is_told(
    broker: Hosted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "orders@7", "--at", at(broker)]) == 1
    assert "topic 'orders' has no record 7: its end offset is 1" in capsys.readouterr().err


def test_an_empty_name_is_refused_at_once(
    broker: Hosted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "", "--at", at(broker)]) == 2
    assert "the name is empty" in capsys.readouterr().err


def test_a_record_of_an_unknown_topic_is_said_to_be_taken_for_a_name(
    broker: Hosted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "nope@1", "--seconds", "1", "--at", at(broker)]) == 0
    assert "there is no topic 'nope': nope@1 is taken for a name" in capsys.readouterr().err
