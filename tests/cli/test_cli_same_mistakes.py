"""Does a command refuse the same mistake alike, whether it is told a directory or an address?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Broker
from tests.cli.conftest import Command
from tests.doors.hosted import Hosted
from tests.each import every_failure

LONG = "x" * 256
TOPICS = ("nosuch", "", "a/b", "a+", "#", "$SYS", ".", LONG, "a\n")
CONSUMERS = ("nobody", "", LONG, "a\n")
POSITIONS = (
    "",
    "99",
    "-5",
    "24h",
    "Latest",
    "tomorrow",
    "2026-01-02",
    "9" * 30,
    "2026-13-40T00:00:00Z",
)
WHERES = ("", "((", "payload ==", "nosuch = 1", "payload = 1 " * 1_000)
FILTERS = ("", "a/#/b", "a+/b", "a/" * 200)
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("topic", "create", "t"),
    ("topic", "create", "T"),
    *[("topic", "create", topic) for topic in TOPICS[1:]],
    ("topic", "create", "new", "--retention-age", "soon"),
    ("topic", "create", "new", "--retention-age", "5"),
    ("topic", "create", "new", "--retention-bytes", "-1"),
    ("topic", "create", "new", "--durability", "none"),
    ("topic", "alter", "t"),
    ("topic", "alter", "t", "--retention-age", "0s"),
    *[("topic", "alter", topic, "--durability", "os") for topic in TOPICS],
    *[("topic", "info", topic) for topic in TOPICS],
    *[("topic", "delete", topic, "--yes") for topic in TOPICS],
    *[("publish", topic, "x") for topic in TOPICS],
    *[("publish", "t", "x", "--name", name) for name in ("", "a/#", "a+", "$SYS/x", "a/" * 200)],
    ("publish", "t", "x", "--header", "novalue"),
    ("publish", "t", "x", "--header", "=x"),
    ("publish", "t", "x", "--header", f"a={'x' * 70_000}"),
    ("publish", "t", "x", "--lines"),
    *[("consume", topic) for topic in TOPICS],
    *[("consume", topic, "--consumer", "c") for topic in TOPICS],
    *[("consume", "t", "--consumer", consumer) for consumer in CONSUMERS[1:]],
    *[("consume", "t", "--from", position) for position in POSITIONS],
    *[("consume", "t", "--consumer", "c", "--from", position) for position in POSITIONS],
    *[("consume", "t", "--where", where) for where in WHERES],
    *[("consume", "t", "--consumer", "c", "--where", where) for where in WHERES],
    *[("consume", "t", "--names", names) for names in FILTERS],
    *[("consume", "t", "--follow", "--names", names) for names in FILTERS],
    ("consume", "t", "--follow", "--from", "99"),
    ("consume", "t", "--follow", "--where", "(("),
    ("consume", "t", "--limit", "0"),
    ("consume", "t", "--consumer", "c", "--follow"),
    *[("consumer", "list", topic) for topic in TOPICS],
    *[("consumer", "seek", topic, "c", "earliest") for topic in TOPICS],
    *[("consumer", "seek", "t", consumer, "earliest") for consumer in CONSUMERS],
    *[("consumer", "seek", "t", "c", position) for position in POSITIONS],
    *[("consumer", "remove", topic, "c") for topic in TOPICS],
    *[("consumer", "remove", "t", consumer) for consumer in CONSUMERS],
    *[("group", "list", topic) for topic in TOPICS],
    *[("group", "show", topic, "g") for topic in TOPICS],
    *[
        ("group", action, topic, "g")
        for topic in TOPICS
        for action in ("remove", "create", "redrive")
    ],
    *[("binding", "add", "a/#", topic) for topic in TOPICS],
    *[("binding", "add", names, "t") for names in FILTERS],
    ("binding", "remove", "nothing/+"),
    ("group", "alter", "t", "nobody", "--lease", "5"),
    ("group", "alter", "t", "g"),
    *[("group", "create", "t", "g", "--lease", lease) for lease in ("0", "-1", "nan", "x")],
    *[("group", "create", "t", "g", "--deliveries", count) for count in ("-1", "x")],
    *[("group", "redrive", "t", "g", "--where", where) for where in WHERES],
    ("group", "redrive", "t", "g", "--limit", "0"),
    *[("group", action, "t", group) for group in CONSUMERS for action in ("show", "remove")],
    *[("user", "add", user) for user in ("", "a:b", " a", LONG)],
    ("user", "passwd", "nobody"),
    ("user", "remove", "nobody"),
    ("user", "key", "nobody"),
    ("user", "revoke", "nokey"),
    ("log", "import", "--lines", "/nonexistent"),
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A directory that nobody has open, and the address of a broker with the same in it."""
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    for data in (here, there):
        prepare(data)
    with Hosted(there) as hosted:
        yield str(here), f"http://127.0.0.1:{hosted.ports['http']}"


def prepare(data: Path) -> None:
    with Broker(data) as broker:
        broker.create_topic("t")
        broker.publish_many([1, 2], "t")
        broker.subscribe("c", "t")


@pytest.mark.parametrize("first", list(dict.fromkeys(one[0] for one in COMMANDS)))
def test_a_mistake_has_the_same_exit_code_and_text(
    run: Command, places: tuple[str, str], first: str
) -> None:
    with every_failure() as tried:
        for command in (one for one in COMMANDS if one[0] == first):
            with tried(" ".join(command)):
                told = [run(*command, "--at", place, stdin="secret\n") for place in places]
                assert told[0].code in (1, 2), told[0]
                here, there = [(one.code, one.out, one.err) for one in told]
                assert here == there
                assert "Traceback" not in told[0].err
