"""`penstock status|top|doctor`: do people see how the broker and the machine are?"""

from __future__ import annotations

import json
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.cli.server import doctor
from penstock.model.record import DEFAULT_TENANT
from tests.doors.hosted import Hosted
from tests.http.asking import Asking
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with Hosted(tmp_path_factory.mktemp("data")) as hosted, Asking(hosted.ports["http"]) as asking:
        asking.ask("PUT", "/v1/topics/orders", {})
        asking.ask("POST", "/v1/topics/orders/records", [{"payload": 1}, {"payload": 2}])
        asking.ask("PUT", "/v1/topics/orders/consumers/billing", {"from": "earliest"})
        yield hosted


def at(broker: Hosted) -> str:
    return f"http://127.0.0.1:{broker.ports['http']}"


def test_status_shows_topics_clients_and_the_slowest_reader(
    broker: Hosted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--at", at(broker)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "topics      1 topic, 2 records" in lines
    assert "clients     0 connected, 0 away, 0 subscriptions" in lines
    assert re.fullmatch(r"running     since \S+Z, [\d,]+ (second|minute)s?", lines[1])
    assert lines[-1].split() == ["billing", "consumer", "orders", "2"]


def test_status_as_json_is_what_http_answers(
    broker: Hosted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--json", "--at", at(broker)]) == 0
    shown = json.loads(capsys.readouterr().out)
    with Asking(broker.ports["http"]) as asking:
        assert shown.keys() == asking.ask("GET", "/v1/overview").json.keys()


def test_top_shows_it_as_often_as_it_is_told(
    broker: Hosted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "-n", "2", "-d", "1", "--at", at(broker)]) == 0
    assert capsys.readouterr().out.count("engine") == 2


def test_a_latency_is_shown_only_if_something_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as asking:
        samples = broker.http.tenants.get(DEFAULT_TENANT).world.samples
        asking.ask("PUT", "/v1/topics/orders", {})

        def shown() -> list[str]:
            broker.call(samples.take)
            assert main(["status", "--at", at(broker)]) == 0
            lines = capsys.readouterr().out.splitlines()
            return [line[12:] for line in lines if line.startswith(("ack ", "commit "))]

        def measured() -> bool:  # unless the broker took a sample itself just now
            asking.ask("POST", "/v1/topics/orders/records", {"payload": 3})
            found = [re.fullmatch(r"[\d.]+ ms, 99 % within [\d.]+ ms", one) for one in shown()]
            return len(found) == 2 and all(found)

        wait_until(lambda: shown() == ["-", "-"])
        wait_until(measured)


def test_status_of_a_directory_that_nobody_serves_says_what_to_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--at", str(tmp_path)]) == 3
    assert "penstock serve" in capsys.readouterr().err


def test_doctor_checks_everything_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", "--json", "--at", str(tmp_path / "new")])
    found = json.loads(capsys.readouterr().out)
    assert {"python", "engine", "spark", "java", "disk", "sync", "open files", "clock"} <= {
        one["what"] for one in found
    }
    assert all(one["advice"] for one in found if one["state"] != "good")
    assert list(tmp_path.iterdir()) == []


def test_doctor_says_what_to_do_about_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(doctor, "PORTS", (("mqtt", taken.getsockname()[1]),))
        (finding,) = doctor.check_ports(Path("/nowhere"))
    assert finding.state == "hint" and "--mqtt" in finding.advice


def test_doctor_names_the_broker_that_has_the_directory_open(
    tmp_path: Path,
) -> None:
    with Hosted(tmp_path) as broker:
        (finding,) = doctor.check_ports(tmp_path)
    assert finding.state == "good" and str(broker.port) in finding.says


def test_doctor_says_when_too_few_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1_024))
    (finding,) = doctor.check_open_files()
    assert finding.state == "hint" and "LimitNOFILE" in finding.advice


def test_doctor_fails_on_a_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert main(["doctor", "--at", str(tmp_path)]) == 1
    assert "cannot be written" in capsys.readouterr().out
