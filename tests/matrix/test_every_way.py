"""Is every way to publish and to read that the code has in the matrix, or known to be neither?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.doors.hosted import Hosted
from tests.matrix import found, http_readers, listed, mqtt_readers, other_readers, python_readers
from tests.matrix.listed import Listed
from tests.matrix.publishers import PUBLISHERS
from tests.matrix.reading import READERS

assert http_readers and mqtt_readers and other_readers and python_readers  # each adds its own
MATRIX = [*PUBLISHERS, *READERS]
TABLES = {
    "routes": listed.ROUTES,
    "commands": listed.COMMANDS,
    "methods": listed.METHODS,
    "packets": listed.PACKETS,
    "callers": listed.CALLERS,
}


def check_all_listed(ways: Iterable[str], table: Listed) -> None:
    """What is new is to be listed, with a publisher or reader of its own; what went, to go."""
    there = set(ways)
    new = there - table.keys()
    assert not new, f"add to tests/matrix/listed.py, with a publisher or reader if it is one: {new}"
    gone = table.keys() - there
    assert not gone, f"remove from tests/matrix/listed.py: {gone}"


def test_every_route_is_in_the_matrix_or_neither_stores_nor_gives_records(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker:
        check_all_listed(found.routes(broker.http), listed.ROUTES)


def test_every_command_is_in_the_matrix_or_neither_stores_nor_gives_records() -> None:
    check_all_listed(found.commands(), listed.COMMANDS)


def test_every_method_is_in_the_matrix_or_neither_stores_nor_gives_records() -> None:
    methods = list(found.methods())
    shared = {way for way in methods if way not in listed.METHODS}
    names = {way.partition(".")[2] for way in shared}
    check_all_listed({*names, *(way for way in methods if way not in shared)}, listed.METHODS)


def test_every_packet_of_mqtt_is_in_the_matrix_or_neither_stores_nor_gives_records() -> None:
    check_all_listed(found.packet_kinds(), listed.PACKETS)


def test_every_function_that_appends_to_a_log_or_follows_it_is_in_the_matrix() -> None:
    check_all_listed(found.callers(), listed.CALLERS)


@pytest.mark.parametrize("table", TABLES)
def test_what_a_way_names_is_in_the_matrix(table: str) -> None:
    named = {one for ways in TABLES[table].values() if not isinstance(ways, str) for one in ways}
    unknown = [one for one in named if not any(key.startswith(one) for key in MATRIX)]
    assert not unknown


def test_everything_in_the_matrix_is_named_by_a_way() -> None:
    named = tuple(
        one
        for table in TABLES.values()
        for ways in table.values()
        if not isinstance(ways, str)
        for one in ways
    )
    assert not [key for key in MATRIX if not key.startswith(named)]
