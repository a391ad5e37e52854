"""The real command in a process of its own: exit codes, signals, closed pipes, help."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker, __version__
from penstock.cli.main import make_parser
from tests.cli.conftest import Command
from tests.each import each

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
PATIENCE_S = 60


def plain_environment() -> dict[str, str]:
    """Ours, without what changes how commands behave."""
    ours = {"PENSTOCK_AT", "PYTHONUNBUFFERED"}
    return {key: value for key, value in os.environ.items() if key not in ours}


def start(
    *arguments: str, cwd: Path, stdin: Any = subprocess.DEVNULL, **environment: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PENSTOCK, *arguments],
        cwd=cwd,
        env={**plain_environment(), **environment},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str, cwd: Path, **environment: str) -> tuple[int, str, str]:
    command = start(*arguments, cwd=cwd, **environment)
    out, err = command.communicate(timeout=PATIENCE_S)
    return command.returncode, out, err


def test_a_first_look_as_the_help_tells_it(tmp_path: Path) -> None:
    assert run("topic", "create", "sensors", cwd=tmp_path)[0] == 0
    assert run("publish", "sensors", "hello", "--name", "sensors/42/temp", cwd=tmp_path) == (
        0,
        "stored at offset 0\n",
        "",
    )
    assert run("consume", "sensors", "--consumer", "me", cwd=tmp_path) == (0, "hello\n", "")
    assert run("consume", "sensors", "--consumer", "me", cwd=tmp_path) == (0, "", "")
    assert run("log", "verify", cwd=tmp_path)[0] == 0
    assert (tmp_path / "penstock_data").is_dir()


def test_the_directory_comes_from_the_option_then_the_environment_then_here(
    tmp_path: Path,
) -> None:
    run("topic", "create", "option", "--at", "one", cwd=tmp_path, PENSTOCK_AT="two")
    run("topic", "create", "environment", cwd=tmp_path, PENSTOCK_AT="two")
    run("topic", "create", "here", cwd=tmp_path)
    found = {
        path.parent.parent.parent.name: path.parent.name
        for path in tmp_path.glob("*/*/*/topic.json")
    }
    assert found == {"one": "option-1", "two": "environment-1", "penstock_data": "here-1"}


def test_reading_commands_make_no_directory(run: Command, data: Path) -> None:
    for arguments in ("topic list", "publish t x", "consume t", "consumer list t", "log verify"):
        done = run(*arguments.split())
        assert done.code == 1, arguments
        assert done.err.startswith("penstock: data directory")
    assert not data.exists()


def test_an_empty_directory_stays_empty(run: Command, data: Path) -> None:
    data.mkdir()
    for command in ("topic list", "consume t", "pipeline list", "pipeline run stats", "user list"):
        done = run(*command.split())
        assert done.code == 1 and f"directory {str(data)!r} is empty: give a" in done.err, command
    assert run("log", "verify").out == "no topics yet\n"
    assert list(data.iterdir()) == []
    assert run("topic", "create", "t").code == 0


def test_an_address_is_refused_where_files_are_read(run: Command) -> None:
    done = run("log", "verify", "--at", "http://localhost:8090")
    assert done.code == 2 and "give the data directory" in done.err


def test_a_directory_somebody_holds_is_exit_code_3_and_names_the_pid(tmp_path: Path) -> None:
    with Broker(tmp_path / "penstock_data") as broker:
        broker.create_topic("t")
        code, out, err = run("topic", "list", cwd=tmp_path)
    assert (code, out) == (3, "")
    assert f"is open in process {os.getpid()}" in err


@pytest.mark.parametrize("arguments", ["", "nosuch", "topic", "topic explode", "publish", "log"])
def test_usage_is_exit_code_2(run: Command, arguments: str) -> None:
    done = run(*arguments.split())
    assert done.code == 2 and done.out == "" and done.err.startswith("usage: penstock")


def test_a_command_that_does_not_exist_is_answered_with_the_nearest_one(run: Command) -> None:
    assert run("topcs").err.endswith("unknown command 'topcs': did you mean 'topic'?\n")
    lst = run("topic", "lst")
    assert lst.code == 2 and "unknown action 'lst': did you mean 'list'?" in lst.err
    assert "choose from create, list, info" in run("topic", "xyz").err
    assert run("xyzzy").err.endswith("unknown command 'xyzzy': see `penstock --help`\n")


@pytest.mark.parametrize("arguments", ["topic list --colour", "serve --colour", "pipeline list x"])
def test_what_a_command_does_not_know_is_answered_with_its_own_usage(
    run: Command, arguments: str
) -> None:
    *command, unknown = arguments.split()
    done = run(*command, unknown)
    assert done.code == 2 and done.err.startswith(f"usage: penstock {' '.join(command)} [")
    assert done.err.endswith(f"unrecognized arguments: {unknown}\n")


def test_a_flag_of_serve_that_is_wrong_is_a_wrong_command_line(run: Command) -> None:
    done = run("serve", "--mqtt", "foo")
    assert done.code == 2 and "'foo' is not a valid address" in done.err


def test_a_broker_that_nobody_could_reach_is_refused(run: Command, tmp_path: Path) -> None:
    off = ("--mqtt", "off", "--http", "off", "--data", str(tmp_path / "data"))
    done = run("serve", *off, "--check")
    assert done.code == 1 and "no client could connect" in done.err
    assert run("serve", *off, "--check", "--bus", str(tmp_path / "bus")).code == 0
    assert not (tmp_path / "data").exists()


def every_command() -> list[list[str]]:
    """All commands and actions there are, from the parser itself."""
    found: list[list[str]] = []

    def walk(parser: argparse.ArgumentParser, path: list[str]) -> None:
        found.append(path)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, inner in action.choices.items():
                    walk(inner, [*path, name])

    walk(make_parser(), [])
    return found


@each("path", every_command(), ids=" ".join)
def test_every_command_explains_itself(run: Command, path: list[str]) -> None:
    done = run(*path, "--help")
    assert done.code == 0 and done.out.startswith("usage: " + " ".join(["penstock", *path]))
    description = done.out.split("\n\n")[1]
    assert description[0].isupper() and (not path or description.rstrip().endswith(".")), path


def test_version(run: Command) -> None:
    assert run("--version").out == f"penstock {__version__}\n"


# Signals and pipes


def test_follow_shows_what_comes_and_ends_quietly_on_ctrl_c(tmp_path: Path) -> None:
    """The stream waits when the signal arrives."""
    data = tmp_path / "penstock_data"
    with Broker(data) as broker:
        broker.create_topic("t")
        broker.publish_many(["one", "two"], "t")
    follow = start("consume", "t", "--follow", "--from", "earliest", cwd=tmp_path)
    assert follow.stdout is not None
    assert [follow.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
    follow.send_signal(signal.SIGINT)
    out, err = follow.communicate(timeout=PATIENCE_S)
    assert (follow.returncode, out, err) == (130, "", "")
    with Broker(data) as broker:  # it was released, and closed cleanly
        assert broker.notes == ()


def test_follow_ends_at_its_limit(tmp_path: Path) -> None:
    with Broker(tmp_path / "penstock_data") as broker:
        broker.create_topic("t")
        broker.publish_many(["one", "two"], "t")
    done = run("consume", "t", "--follow", "--from", "0", "--limit", "2", cwd=tmp_path)
    assert done == (0, "one\ntwo\n", "")


@pytest.mark.parametrize(
    "arguments",
    ["consume t", "consume t --follow --from 0", "log dump t", "consume t --consumer me"],
)
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path, arguments: str) -> None:
    with Broker(tmp_path / "penstock_data") as broker:
        broker.create_topic("t")
        broker.publish_many([f"line {i}" * 10 for i in range(20_000)], "t")
    command = start(*arguments.split(), cwd=tmp_path)
    assert command.stdout is not None and command.stderr is not None
    assert "line 0" in command.stdout.readline() + command.stdout.readline()
    command.stdout.close()
    assert command.wait(PATIENCE_S) == 0
    assert command.stderr.read() == ""
    command.stderr.close()


def test_a_consumer_whose_reader_left_gets_the_batch_again(tmp_path: Path) -> None:
    with Broker(tmp_path / "penstock_data") as broker:
        broker.create_topic("t")
        broker.publish_many([f"line {i}" * 10 for i in range(5_000)], "t")
    command = start("consume", "t", "--consumer", "me", cwd=tmp_path)
    assert command.stdout is not None and command.stderr is not None
    command.stdout.readline()
    command.stdout.close()
    command.wait(PATIENCE_S)
    command.stderr.close()
    with Broker(tmp_path / "penstock_data") as broker:
        assert broker.size("t", "me") == 5_000


def test_a_closed_pipe_at_the_very_end_is_no_error(tmp_path: Path) -> None:
    run("topic", "create", "t", cwd=tmp_path)
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as closed:
        done = subprocess.run(
            [PENSTOCK, "topic", "list"],
            cwd=tmp_path,
            env=plain_environment(),
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_serve_names_topics_whose_files_are_damaged_or_missing(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        broker.create_topic("bad")
        broker.create_topic("good")
    shutil.rmtree(tmp_path / "data" / "default" / "bad-1")
    served = start(
        "serve", "--data", "data", "--mqtt", "127.0.0.1:0", "--http", "off", cwd=tmp_path
    )
    assert served.stdout is not None
    greeting = ""
    while "ready" not in greeting:
        line = served.stdout.readline()
        assert line, served.communicate()
        greeting += line
    assert "unavailable: topic bad, because files are damaged or missing" in greeting
    assert "good" not in greeting
    served.send_signal(signal.SIGTERM)
    _, err = served.communicate(timeout=PATIENCE_S)
    assert served.returncode == 0 and "default/bad-1 holds no segment" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_what_it_promises_and_stops_cleanly(
    tmp_path: Path, number: signal.Signals
) -> None:
    served = start(
        "serve", "--data", "data", "--mqtt", "127.0.0.1:0", "--http", "off", cwd=tmp_path
    )
    assert served.stdout is not None
    greeting = ""
    while "ready" not in greeting:
        line = served.stdout.readline()
        assert line, served.communicate()
        greeting += line
    for fact in ("data: data (0 topics)", "durability: fsync", "retention: 7d", "engine: "):
        assert fact in greeting
    holder = json.loads((tmp_path / "data" / "lock").read_text())
    assert holder["pid"] == served.pid
    code, _, err = run("topic", "list", "--at", "data", cwd=tmp_path)
    assert (code, err) == (0, ""), "the socket in the directory is enough"
    served.send_signal(number)
    out, err = served.communicate(timeout=PATIENCE_S)
    assert served.returncode == 0 and "stopping" in out
    assert [line.split(" ", 2)[1] for line in err.splitlines()] == ["info"] * 3, err
    assert (tmp_path / "data" / "lock").read_text() == ""
    with Broker(tmp_path / "data") as broker:
        assert broker.notes == ()


def test_a_wrong_option_of_serve_is_told_without_loading_the_server() -> None:
    ask = (
        "import sys\nfrom penstock.cli.main import main\n"
        "try: main(['serve', '--mqtt', 'nowhere'])\nexcept SystemExit: pass\n"
        "print(*sorted(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert "'nowhere' is not a valid address" in ended.stderr
    loaded = ended.stdout.split()
    assert "penstock.cli.server.serve" in loaded and "penstock.app.server" not in loaded


@pytest.mark.parametrize(
    "typed",
    [
        ["publish", "t", "--name", "t/a", "hello"],
        ["publish", "--name", "t/a", "t", "hello"],
        ["publish", "t", "hello", "--name", "t/a"],
        ["publish", "--name", "t/a", "--", "t", "hello"],
    ],
)
def test_options_may_be_anywhere_among_the_words_of_a_command(
    run: Command, typed: list[str]
) -> None:
    run("topic", "create", "t")
    assert run(*typed).out == "stored at offset 0\n"
    (record,) = [json.loads(line) for line in run("consume", "t", "--json").out.splitlines()]
    assert (record["name"], record["payload"]) == ("t/a", "hello")


def test_a_message_that_begins_with_a_dash_is_published_after_two_dashes(run: Command) -> None:
    run("topic", "create", "t")
    run("publish", "t", "--name", "t/a", "--", "-x")
    assert run("consume", "t").out == "-x\n"


def test_an_option_that_does_not_exist_is_answered_with_the_nearest_one(run: Command) -> None:
    wrong = run("publish", "t", "--nme", "t/a", "hello")
    assert wrong.code == 2 and wrong.err.endswith(": did you mean '--name'?\n")
    assert run("serve", "--htpp", "off").err.endswith(": did you mean '--http'?\n")


def test_dead_letters_of_a_group_that_does_not_exist_are_refused(run: Command) -> None:
    run("topic", "create", "t")
    done = run("group", "redrive", "t", "pakers")
    assert done.code == 1 and "topic 't' has no group 'pakers'" in done.err
