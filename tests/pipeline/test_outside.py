"""Can the catalog be read beside the broker that holds it, and after it, killed or closed?"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Broker, RefusedError, UnavailableError
from penstock.catalog.outside import (
    CatalogPlace,
    ConsumerSeen,
    SessionsSeen,
    fetch_sessions,
    look,
    see_consumers,
    see_sessions,
)
from tests.postgres_server import PostgresServer


def see(data: Path) -> SessionsSeen:
    with look(CatalogPlace(data)) as fetch:
        return see_sessions(fetch_sessions(fetch))


def consumers(place: CatalogPlace) -> list[ConsumerSeen]:
    with look(place) as fetch:
        return see_consumers(fetch)


def test_consumers_are_seen_with_their_saved_positions_while_the_broker_runs_and_after(
    tmp_path: Path,
) -> None:
    wanted = [ConsumerSeen("consumer", "late", 1, 1, 2), ConsumerSeen("consumer", "new", 1, 1, 0)]
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish_many(["1", "2", "3"], "t")
        broker.subscribe("late", "t")
        broker.subscribe("new", "t")
        broker.consume("late", "t", limit=2)
        broker.commit("late", "t")
        running = consumers(CatalogPlace(tmp_path))
        assert [(one.name, one.topic_id) for one in running] == [("late", 1), ("new", 1)]
    assert consumers(CatalogPlace(tmp_path)) == wanted
    with Broker(tmp_path) as broker:  # nothing is left behind that would be in its way
        assert broker.size("t", "late") == 1


def test_a_catalog_in_postgres_is_read_as_well(tmp_path: Path, postgres: PostgresServer) -> None:
    schema = postgres.new_schema()
    where = CatalogPlace(tmp_path, postgres.url, schema)
    with Broker(tmp_path, catalog_url=postgres.url, catalog_schema=schema) as broker:
        broker.create_topic("t")
        broker.publish("x", "t")
        broker.subscribe("c", "t")
        assert [(one.kind, one.name) for one in consumers(where)] == [("consumer", "c")]
        with look(where) as fetch:
            assert see_sessions(fetch_sessions(fetch)) == SessionsSeen()
    with pytest.raises(RefusedError, match="PENSTOCK_CATALOG__URL"):
        see(tmp_path)


def test_a_directory_without_a_catalog_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="contains no catalog.*PENSTOCK_CATALOG__URL"):
        see(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
    with pytest.raises(UnavailableError, match="readonly"), look(CatalogPlace(tmp_path)) as fetch:
        fetch("delete from topics")


@pytest.mark.parametrize(
    ("connected", "feed_id", "wanted"),
    [
        (False, 0, (1, 5)),
        (False, 9, (1, 7)),
        (False, 8, (1, 5)),
        (True, 0, (1, 5)),
        (True, 8, (1, 3)),
    ],
)
def test_where_a_session_and_its_feeds_go_on(
    connected: bool, feed_id: int, wanted: tuple[int, int]
) -> None:
    seen = SessionsSeen(
        connected={"c": connected},
        levels={1: (1, 3), 2: (1, 4)},
        positions={"c": {1: (1, 5)}},
        feeds={("c", 9): {1: (1, 7)}},
    )
    assert seen.at("c", feed_id, 1) == wanted


def test_a_topic_born_while_the_client_was_away_is_read_from_its_beginning() -> None:
    seen = SessionsSeen(connected={"away": False, "here": True}, levels={2: (1, 4)})
    assert seen.at("away", 0, 2) == (0, 0)
    assert seen.at("here", 0, 2) == (1, 4)
