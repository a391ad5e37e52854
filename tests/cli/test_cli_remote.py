"""Commands on a running broker: does it make a difference who has the directory open?"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Broker
from penstock.log.files.directory import read_holder
from tests.cli.conftest import Command
from tests.cli.test_cli_command import PATIENCE_S, start
from tests.doors.certificates import Authority
from tests.doors.served import Served
from tests.doors.users import add_users
from tests.http.asking import Asking

# Lines of a broker's log would be between what a command says.
QUIET = ("--log-level", "warning")

SESSION: tuple[tuple[str, ...], ...] = (
    ("topic", "list"),
    ("topic", "create", "Sensors", "--retention-age", "30d"),
    ("topic", "create", "sensors"),
    ("topic", "create", "sensors", "--exist-ok", "--json"),
    ("publish", "sensors", '{"celsius": 21.5}', "--name", "sensors/42/temp", "--header", "unit=C"),
    ("publish", "sensors", "--lines"),
    ("publish", "nosuch", "x"),
    ("consume", "sensors", "--consumer", "me", "--limit", "2"),
    ("consume", "sensors", "--consumer", "me", "--no-commit", "--limit", "1"),
    ("consume", "sensors", "--consumer", "me", "--limit", "1"),
    ("consumer", "list", "sensors"),
    ("consume", "sensors", "--consumer", "me"),
    ("consume", "sensors", "--consumer", "me"),
    ("consume", "sensors", "--consumer", "me", "--from", "1", "--where", "payload = 'four'"),
    ("consume", "sensors", "--from", "-24h", "--where", "payload.celsius > 20", "-v"),
    ("consume", "sensors", "--names", "sensors/+/temp", "--json"),
    ("consume", "sensors", "--from", "99"),
    ("consume", "sensors", "--where", "payload ="),
    ("consume", "nosuch"),
    ("consumer", "seek", "sensors", "me", "earliest"),
    ("consumer", "seek", "sensors", "nobody", "earliest"),
    ("consumer", "list", "sensors", "--json"),
    ("group", "list", "sensors"),
    ("group", "show", "sensors", "nobody"),
    ("binding", "list"),
    ("binding", "add", "a/+", "sensors"),
    ("binding", "add", "b/#", "Sensors", "--json"),
    ("binding", "list"),
    ("binding", "list", "--json"),
    ("binding", "remove", "a/+"),
    ("binding", "remove", "a/+"),
    ("binding", "remove", "b/#"),
    ("publish", "sensors", "on", "--retain", "--name", "sensors/lamp"),
    ("group", "create", "sensors", "workers", "--lease", "60", "--deliveries", "3"),
    ("group", "show", "sensors", "workers"),
    ("group", "alter", "sensors", "workers", "--deliveries", "0"),
    ("group", "redrive", "sensors", "workers"),
    ("group", "redrive", "sensors", "workers", "--dry-run", "--json"),
    ("group", "remove", "sensors", "workers"),
    ("group", "remove", "sensors", "nobody"),
    ("topic", "alter", "sensors", "--retention-bytes", "10 MiB"),
    ("topic", "info", "sensors"),
    ("topic", "info", "nosuch"),
    ("topic", "list"),
    ("log", "export", "--lines", "OUT"),
    ("consumer", "remove", "sensors", "me"),
    ("topic", "delete", "sensors", "--yes"),
    ("log", "import", "--lines", "OUT"),
    ("consume", "sensors", "--consumer", "me"),
    ("topic", "delete", "nosuch", "--yes"),
)
SIZES = re.compile(r"\b[\d.]+ (KiB|B)\b")
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|(?<=\"timestamp\": )\d+")


def act(run: Command, out: Path, *more: str) -> list[tuple[int, str, str]]:
    """What every command of the session said, without what differs by nature."""
    said = []
    for command in SESSION:
        arguments = [str(out) if one == "OUT" else one for one in command]
        done = run(*arguments, *more, stdin="two\nthree\nfour")
        shown = SIZES.sub("SIZE", TIMES.sub("TIME", done.out))
        said.append((done.code, re.sub(" +", " ", shown), done.err))
    return said


@pytest.fixture
def served(data: Path) -> Iterator[Served]:
    with Served(data, *QUIET) as broker:
        yield broker


def test_commands_say_the_same_whoever_has_the_directory_open(
    tmp_path: Path, data: Path, run: Command
) -> None:
    alone = act(run, tmp_path / "alone", "--at", str(tmp_path / "closed"))
    with Served(data, *QUIET) as broker:
        by_directory = act(run, tmp_path / "held", "--at", str(data))
        assert run("topic", "delete", "sensors", "--yes").code == 0
        url = f"http://127.0.0.1:{broker.http_port}"
        by_url = act(run, tmp_path / "url", "--at", url)
    for command, here, held, there in zip(SESSION, alone, by_directory, by_url, strict=True):
        if command == ("topic", "list") and not here[1]:
            continue
        ids = re.compile(r"id +\d+|\(id \d+\)|\"id\": \d+")
        for other in (held, there):
            assert [ids.sub("ID", str(one)) for one in other] == [
                ids.sub("ID", str(one)) for one in here
            ], command


def test_groups_are_listed_shown_and_removed(data: Path, run: Command) -> None:
    with Served(data, *QUIET) as broker:
        url = f"http://127.0.0.1:{broker.http_port}"
        with penstock.connect(url) as client:
            client.create_topic("orders")
            client.publish_many(["a", "b", "c"], "orders")
            group = client.join_group("packers", "orders")
            first, second = group.fetch(2)
            group.ack([first])
        shown = [run("group", "list", "orders", "--at", at).out for at in (url, str(data))]
        rows = [line.split() for line in shown[0].splitlines()]
        assert shown[0] == shown[1]
        assert rows == [
            ["group", "next", "waiting", "leased", "to", "repeat"],
            ["packers", "2", "1", "1", "0"],
        ]
        one = run("group", "show", "orders", "packers").out
        assert "next        2" in one and "leased" in one
        (pending,) = run("group", "show", "orders", "packers", "--json").json["pending"]
        assert (pending["offset"], pending["state"]) == (second.record.offset, "leased")
    closed = run("group", "list", "orders", "--json").json
    assert [(one["group"], one["next_offset"], one["lag"]) for one in closed] == [("packers", 2, 1)]
    assert run("group", "remove", "orders", "packers").out == "removed group packers\n"
    assert run("group", "list", "orders").out == "topic orders has no groups\n"


def test_follow_shows_what_comes_to_a_running_broker_and_ends_quietly_on_ctrl_c(
    tmp_path: Path, served: Served, run: Command
) -> None:
    run("topic", "create", "t")
    run("publish", "t", "one")
    url = f"http://127.0.0.1:{served.http_port}"
    follow = start("consume", "t", "--follow", "--from", "earliest", "--at", url, cwd=tmp_path)
    assert follow.stdout is not None
    assert follow.stdout.readline() == "one\n"
    run("publish", "t", "two")
    assert follow.stdout.readline() == "two\n"
    follow.send_signal(signal.SIGINT)
    out, err = follow.communicate(timeout=PATIENCE_S)
    assert (follow.returncode, out, err) == (130, "", "")


def test_a_consumer_of_a_running_broker_whose_reader_left_gets_the_batch_again(
    tmp_path: Path, served: Served, run: Command
) -> None:
    run("topic", "create", "t")
    run("publish", "t", "--lines", stdin="\n".join(f"line {i}" * 10 for i in range(5_000)))
    url = f"http://127.0.0.1:{served.http_port}"
    command = start("consume", "t", "--consumer", "me", "--at", url, cwd=tmp_path)
    assert command.stdout is not None and command.stderr is not None
    command.stdout.readline()
    command.stdout.close()
    assert command.wait(PATIENCE_S) == 0
    assert command.stderr.read() == ""
    command.stderr.close()
    (me,) = run("consumer", "list", "t", "--json").json
    assert me["waiting"] == 5_000


def test_lines_are_stored_as_they_come_not_when_the_pipe_ends(
    tmp_path: Path, served: Served, run: Command
) -> None:
    run("topic", "create", "t")
    url = f"http://127.0.0.1:{served.http_port}"
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as lines:
        publisher = start("publish", "t", "--lines", "--at", url, cwd=tmp_path, stdin=lines)
    follow = start("consume", "t", "--follow", "--from", "0", "--at", url, cwd=tmp_path)
    assert follow.stdout is not None
    os.write(write_end, b"one\ntw")
    assert follow.stdout.readline() == "one\n"
    os.write(write_end, b"o\n")
    assert follow.stdout.readline() == "two\n"
    os.close(write_end)
    out, _ = publisher.communicate(timeout=PATIENCE_S)
    assert out == "stored 2 messages at offsets 0 to 1\n"
    follow.send_signal(signal.SIGINT)
    follow.communicate(timeout=PATIENCE_S)


def test_a_broker_that_is_not_there_is_exit_code_3(run: Command, data: Path) -> None:
    for command in ("topic list", "publish t x", "consume t", "group list t", "user list"):
        done = run(*command.split(), "--at", "http://127.0.0.1:1")
        assert done.code == 3 and "cannot reach a broker at 127.0.0.1:1" in done.err, command
    assert not data.exists()


def test_an_invalid_url_is_a_usage_error_that_names_the_option(
    run: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for at in (
        "http://",
        "http:/127.0.0.1",
        "https:h:1",
        "mqtt://127.0.0.1:1883",
        "http://127.0.0.1:99999",
        "http://u:secret@h:x",
        "http://[::1",
    ):
        for command in ("topic list", "session list", "user list", "pipeline run stats"):
            done = run(*command.split(), "--at", at)
            assert done.code == 2 and "use http://HOST:PORT" in done.err, (command, at)
            assert done.err.startswith("penstock: --at '") and "secret" not in done.err
    wrong = "http://u:secret@h:x"
    for option, command in (
        ("DIR|URL", f"context add c {wrong}"),
        ("--url", f"pipeline run replay t --into u --checkpoint c --url {wrong}"),
    ):
        done = run(*command.split())
        assert done.code == 2 and "use http://HOST:PORT" in done.err, command
        assert done.err.startswith(f"penstock: {option} '") and "secret" not in done.err
    listed = run("history", "list", "--url", "ftp://h/x")
    assert listed.code == 2 and "--url 'ftp://h/x' is not a place for histories" in listed.err
    monkeypatch.setenv("PENSTOCK_AT", wrong)
    done = run("topic", "list")
    assert done.code == 2 and done.err.startswith("penstock: $PENSTOCK_AT 'http://h:x' is not")
    assert run("topic", "list", "--at", str(tmp_path)).code == 1, "a directory without a broker"


def test_a_broker_is_not_served_at_a_url(run: Command, tmp_path: Path) -> None:
    done = run("serve", "--data", "http://alice:secret@h:1", "--http", "off", "--mqtt", "off")
    assert done.code == 2 and "'http://h:1' is a URL: give the directory" in done.err
    done = run("serve", "--data", str(tmp_path), "--http", "http://127.0.0.1:0")
    assert done.code == 2 and "use HOST:PORT" in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("password", ["secret", "sec/ret", "sec@ret"])
def test_a_password_is_not_repeated_where_files_are_read(run: Command, password: str) -> None:
    for command in ("pipeline list", "log verify", "pipeline run clean table", "backup b"):
        done = run(*command.split(), "--at", f"http://alice:{password}@127.0.0.1:1")
        assert done.code == 2 and "'http://127.0.0.1:1' is a URL" in done.err, command
        assert "sec" not in done.err


def test_a_directory_that_a_program_has_open_is_exit_code_3(data: Path, run: Command) -> None:
    with Broker(data):
        done = run("topic", "list")
    assert done.code == 3 and "is open in this process" in done.err


def test_a_broker_with_a_certificate_of_ones_own_is_trusted_by_naming_who_signed_it(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("server")
    flags = ("--https", "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key))
    with Served(tmp_path / "served", *flags) as broker:
        holder = read_holder(tmp_path / "served")
        assert holder is not None and broker.http_port
        (port,) = [one.rsplit(":", 1)[1] for one in holder["addresses"] if "https" in one]
        at = ("--at", f"https://localhost:{port}")
        unknown = run("topic", "list", *at)
        assert unknown.code == 3 and "certificate verify failed" in unknown.err
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
        assert run("topic", "list", *at).code == 0


def test_a_command_that_asks_the_port_of_mqtt_is_told_to_check_the_address(
    data: Path, run: Command
) -> None:
    with Served(data, *QUIET) as broker:
        done = run("topic", "list", "--at", f"http://127.0.0.1:{broker.port}")
    assert done.code == 3 and "check that this is the address for HTTP" in done.err


def test_a_guarded_broker_is_asked_with_a_password_or_a_key(
    tmp_path: Path, data: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_users(data, alice="wonder")
    key = run("user", "key", "alice").out.strip()
    (tmp_path / "key").write_text(key + "\n")
    with Served(data, *QUIET) as broker:
        at = f"http://alice:wonder@127.0.0.1:{broker.http_port}"
        monkeypatch.setenv("PENSTOCK_AT", at.replace("alice:wonder@", ""))
        refused = run("topic", "list")
        assert refused.code == 1
        assert "log in" in refused.err and "--key-file or PENSTOCK_KEY" in refused.err
        assert run("topic", "create", "t", "--at", at).code == 0
        assert run("publish", "t", "x", "--key-file", str(tmp_path / "key")).code == 0
        monkeypatch.setenv("PENSTOCK_KEY", key)
        assert run("consume", "t").out == "x\n"
        wrong = run("topic", "list", "--at", at.replace("wonder", "wander"))
        assert wrong.code == 1 and "wrong user name or password" in wrong.err


def test_a_record_has_one_shape_everywhere(data: Path, run: Command) -> None:
    with Served(data, *QUIET) as broker:
        run("topic", "create", "t")
        run("publish", "t", "on", "--name", "t/lamp", "--header", "k=v", "--retain")
        with penstock.connect(f"http://127.0.0.1:{broker.http_port}") as client:
            client.publish({"n": 1}, "t")
            client.publish(b"\xff", "t")
        consumed = run("consume", "t", "--json").json_lines
        assert consumed == run("log", "dump", "t", "--json").json_lines
        with Asking(broker.http_port) as asking:
            served = asking.ask("GET", "/v1/topics/t/records").json["records"]
        sub = ["sub", "-p", str(broker.port), "-t", "t/lamp", "-C", "1", "--json"]
        (heard,) = run(*sub, "--from", "earliest").json_lines
    for record, same in zip(consumed, served, strict=True):
        assert record.items() >= same.items()
        assert set(record) - set(same) <= {
            *("topic", "partition", "time", "kind", "headers", "publisher", "qos", "retain"),
            "expires_at",
        }
    shared = (heard.keys() & consumed[0].keys()) - {"qos", "retain"}  # those of the delivery
    assert {"topic", "offset", "timestamp", "time", "name", "payload", "headers"} <= shared
    assert {key: heard[key] for key in shared} == {key: consumed[0][key] for key in shared}
