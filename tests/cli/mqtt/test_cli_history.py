"""`penstock sub --from --where`, formats, and connections that are lost and come back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Broker
from penstock.cli.mqtt.history import History
from penstock.log.files.store import EmbeddedStore
from penstock.mqtt.packets import Publish
from penstock.mqtt.properties import NO_PROPERTIES, Properties
from tests.cli.conftest import Outcome
from tests.cli.mqtt.test_cli_pub_sub import Sub, invoke, pub, run_sub
from tests.doors.hosted import Hosted
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.http.asking import Asking


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("data")) as served:
        yield served


def publish(port: int, name: str, *texts: str) -> None:
    lines = "\n".join(texts).encode()
    assert pub(port, "-t", name, "-l", "-q", "1", stdin=lines).code == 0


def test_history_is_shown_first(broker: Served) -> None:
    publish(broker.port, "first/a", *[f"{number}" for number in range(5)])
    answer = run_sub(broker.port, "-t", "first/#", "--from", "-24h", "-C", "5", "-v")
    assert answer.out == "".join(f"first/a {number}\n" for number in range(5))
    assert answer.err == ""


def test_where_leaves_out_what_does_not_pass(broker: Served) -> None:
    publish(broker.port, "warm", '{"celsius": 12}', '{"celsius": 31}', "no JSON")
    answer = run_sub(
        *(broker.port, "-t", "warm", "--from", "earliest", "-C", "1"),
        *("--where", "payload.celsius > 30"),
    )
    assert answer.out == '{"celsius": 31}\n'


def test_json_tells_where_a_record_lies(broker: Served) -> None:
    publish(broker.port, "told", "x")
    answer = run_sub(broker.port, "-t", "told", "--from", "-1h", "-C", "1", "--json")
    shown = json.loads(answer.out)
    assert shown["topic"] == "default" and isinstance(shown["offset"], int)
    assert shown["time"].endswith("Z")
    assert (shown["partition"], shown["headers"]) == (0, [])
    again = run_sub(broker.port, "-t", "told", "--from", shown["time"], "-C", "1", "--json")
    assert json.loads(again.out) == shown


def test_every_record_of_a_topic_with_several_partitions_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only topics in Kafka have several partitions; the files of this broker act as if."""
    monkeypatch.setattr(EmbeddedStore, "partitions_max", 3)
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as asking:
        assert asking.ask("PUT", "/v1/topics/t", {"partitions": 3}).status == 201
        records = [{"name": f"t/{number}", "payload": str(number)} for number in range(60)]
        assert asking.ask("POST", "/v1/topics/t/records", records).status == 200
        answer = run_sub(
            broker.port, "-t", "t/#", "--from", "earliest", "-C", "60", "-W", "30", "--json"
        )
    shown = [json.loads(line) for line in answer.out.splitlines()]
    assert {int(one["payload"]) for one in shown} == set(range(60))
    assert {one["partition"] for one in shown} == {0, 1, 2}


def test_several_filters_each_bring_their_history(broker: Served) -> None:
    publish(broker.port, "two/a", "1", "2")
    publish(broker.port, "two/b", "3")
    answer = run_sub(
        *(broker.port, "-t", "two/b", "-t", "two/#", "--from", "earliest", "-C", "4"),
    )
    assert sorted(answer.out.split()) == ["1", "2", "3", "3"]


def test_a_refusal_says_why(broker: Served) -> None:
    publish(broker.port, "why", "1")
    answer = run_sub(broker.port, "-t", "why", "--from", "999999")
    assert answer.code == 1
    assert "rejected the filter 'why'" in answer.err and "use an offset from 0" in answer.err


def test_a_session_that_is_kept_goes_on_where_it_was(broker: Served) -> None:
    publish(broker.port, "kept", "1", "2")
    me = ("-i", "reader", "-c", "-q", "1", "-t", "kept", "--from", "earliest")
    assert run_sub(broker.port, *me, "-C", "2").out == "1\n2\n"
    publish(broker.port, "kept", "3")
    answer = run_sub(broker.port, *me, "-C", "1")
    assert answer.out == "3\n"
    assert "resuming the session" in answer.err


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        ("%t: %p", "f/1: x\u00fc\n"),
        ("%q%r %l %x %X\\t%%", "00 3 78c3bc 78C3BC\t%\n"),
        ("%C|%R|%E", "text/plain||\n"),
        ("[%P]", "[a:1 a:2]\n"),
        ("%m %S", "0 \n"),
    ],
)
def test_a_format_is_filled_in(broker: Served, format: str, expected: str) -> None:
    with Sub(broker.port, "-t", "f/#", "-C", "1", "-F", format) as reader:
        pub(
            *(broker.port, "-t", "f/1", "-m", "x\u00fc", "-D", "publish", "content-type"),
            *("text/plain", "-D", "publish", "user-property", "a", "1"),
            *("-D", "publish", "user-property", "a", "2"),
        )
        assert reader.result() == (0, expected.encode())


def test_a_format_can_tell_the_place_of_a_record(broker: Served) -> None:
    publish(broker.port, "placed", "x")
    answer = run_sub(
        *(broker.port, "-t", "placed", "--from", "earliest", "-C", "1", "-F", "%T %o %w %p")
    )
    topic, offset, moment, payload = answer.out.split()
    assert (topic, payload) == ("default", "x")
    assert offset.isdigit() and moment.endswith("Z")


def test_filters_can_be_left_out_and_retained_ones_shown_alone(broker: Served) -> None:
    pub(broker.port, "-t", "r/a", "-m", "kept", "-r", "-q", "1")
    publish(broker.port, "r/b", "1")
    publish(broker.port, "r/c", "2")
    answer = run_sub(
        *(broker.port, "-t", "r/#", "-T", "r/b", "--from", "earliest", "-C", "2", "-v")
    )
    assert answer.out == "r/a kept\nr/c 2\n"
    with Sub(broker.port, "-t", "r/#", "--retained-only", "-v") as reader:
        publish(broker.port, "r/b", "3")
        assert reader.result() == (0, b"r/a kept\n")


def test_a_url_says_it_all(broker: Served) -> None:
    where = f"mqtt://127.0.0.1:{broker.port}/url/a%20b"
    with Sub(broker.port, "-t", "url/#", "-C", "1", "-v") as reader:
        assert invoke("pub", "-L", where, "-m", "x").code == 0
        assert reader.result() == (0, b"url/a b x\n")
    answer = invoke("sub", "-L", where, "-C", "1", "-W", "0.2")
    assert answer.code == 3


def test_a_url_may_end_with_a_wildcard_or_contain_a_question_mark(broker: Served) -> None:
    where = f"mqtt://127.0.0.1:{broker.port}/any"
    sent = pub(broker.port, "-t", "any/question?", "-m", "x", "-r", "-q", "1")
    assert sent.code == 0
    for filter in ("any/#", "any/question?"):
        url = where.replace("any", filter)
        answer = invoke("sub", "-L", url, "-C", "1", "-W", "30", "-v")
        assert (answer.code, answer.out) == (0, "any/question? x\n")


# Connections that are lost


@pytest.mark.parametrize("filters", [["a/#"], ["#"]])
def test_a_broker_that_was_killed_leaves_neither_gap_nor_repeat(
    tmp_path: Path, filters: list[str]
) -> None:
    """One topic, where the offset says how to go on, and several, where it does not."""
    with Broker(tmp_path) as made:
        made.create_topic("a")
        made.create_topic("b")
    broker = Served(tmp_path).start()
    publish(broker.port, "a/x", *[f"{number}" for number in range(100)])
    wanted = [part for filter in filters for part in ("-t", filter)]
    with Sub(broker.port, *wanted, "--from", "-1h", "-C", "200", "-q", "1") as reader:
        publish(broker.port, "a/x", *[f"{number}" for number in range(100, 150)])
        broker.kill()
        broker.start()
        publish(broker.port, "a/x", *[f"{number}" for number in range(150, 200)])
        code, out = reader.result()
    assert code == 0
    assert out.split() == [b"%d" % number for number in range(200)]
    assert b"reconnecting" in reader.debug and b"reconnected" in reader.debug
    broker.stop()


def test_a_plain_reader_subscribes_again(tmp_path: Path) -> None:
    broker = Served(tmp_path).start()
    with Sub(broker.port, "-t", "a", "-C", "2") as reader:
        publish(broker.port, "a", "before")
        broker.stop()
        broker.start()
        reader.wait_for(b"received Suback")
        publish(broker.port, "a", "after")
        assert reader.result() == (0, b"before\nafter\n")
    broker.stop()


@pytest.mark.parametrize("qos", ["1", "2"])
def test_what_was_in_flight_is_sent_again(tmp_path: Path, qos: str) -> None:
    """A publisher whose broker is killed under it, twice: every line is stored, at QoS 2 once."""
    broker = Served(tmp_path).start()
    lines = [f"line {number}" for number in range(4_000)]
    answers: list[Outcome] = []

    def work() -> None:
        text = "\n".join(lines).encode()
        answers.append(pub(broker.port, "-t", "a", "-l", "-q", qos, stdin=text))

    worker = threading.Thread(target=work)
    worker.start()
    for _ in range(2):
        wait_for_records(broker.port)
        broker.kill()
        broker.start()
    worker.join(60)
    assert [answer.code for answer in answers] == [0], answers
    broker.stop()
    with Broker(tmp_path) as opened:
        stored = [record.payload.decode() for record in opened.read("default")]
    assert list(dict.fromkeys(stored)) == lines
    if qos == "2":
        assert stored == lines


def wait_for_records(port: int) -> None:
    """Until the publisher is at work."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        answer = run_sub(port, "-t", "a", "-C", "1", "-W", "1")
        if answer.code == 0:
            return
    raise AssertionError("nothing is published")


def test_who_is_refused_when_coming_back_stops(tmp_path: Path) -> None:
    broker = Served(tmp_path).start()
    with Sub(broker.port, "-t", "a") as reader:
        broker.stop()
        add_users(tmp_path, alice="wonder")  # from now on nobody comes in without a login
        broker.start()
        code, _ = reader.result()
        assert code == 1 and b"not authorized" in reader.debug
    broker.stop()


def test_quiet_says_nothing_about_it(tmp_path: Path) -> None:
    broker = Served(tmp_path).start()
    with Sub(broker.port, "-t", "a", "--quiet") as reader:
        broker.kill()
        broker.start()
        reader.wait_for(b"received Suback")
        assert b"penstock:" not in reader.debug
    broker.stop()


# Where to go on


def place(topic: str, offset: int) -> tuple[tuple[str, str], ...]:
    return ("penstock-topic", topic), ("penstock-offset", str(offset))


def record(topic: str, offset: int, *, retain: bool = False) -> Publish:
    properties = Properties(user_properties=place(topic, offset))
    return Publish("n", b"", retain=retain, properties=properties)


def position(history: History, *, by_offset: bool = True) -> str:
    asked = dict(history.properties(NO_PROPERTIES, by_offset=by_offset).user_properties)
    return asked["from"]


def test_going_on_is_by_offset_where_one_topic_was_seen() -> None:
    history = History("-1h", None)
    assert position(history) == "-1h"
    assert history.is_new(record("a", 7))
    assert position(history) == "8"
    assert position(history, by_offset=False).startswith("-36000")
    assert not history.is_new(record("a", 7)) and not history.is_new(record("a", 3))
    assert history.is_new(record("b", 3))
    assert position(history).startswith("-36000")  # an offset would mean one of them only


def test_offsets_count_in_each_partition_on_its_own() -> None:
    def parted(partition: int, offset: int) -> Publish:
        pairs = (*place("a", offset), ("penstock-partition", str(partition)))
        return Publish("n", b"", properties=Properties(user_properties=pairs))

    history = History("earliest", None)
    assert position(history) == "earliest"
    assert history.is_new(parted(0, 5))
    assert history.is_new(parted(1, 0)) and not history.is_new(parted(1, 0))
    assert not history.is_new(parted(0, 5)) and history.is_new(parted(0, 6))
    assert position(history) == "earliest", "partitions that were not seen yet have no offset"


def test_time_that_passes_makes_a_duration_longer_and_an_end_a_duration() -> None:
    history = History(None, "payload = 'x'")
    assert position(history) == "latest"
    assert 1 <= int(position(history).removeprefix("-").removesuffix("ms")) < 60_000
    assert position(History("earliest", None)) == "earliest"


def test_a_retained_message_does_not_tell_how_far_we_are() -> None:
    history = History("latest", None)
    position(history)
    assert history.is_new(record("a", 90, retain=True))
    assert history.is_new(record("a", 5))
    assert position(history) == "6"
