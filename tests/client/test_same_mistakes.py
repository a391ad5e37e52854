"""Does the same mistake get the same answer from a Broker and from a client of a server?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import penstock
from penstock import Broker, PenstockError
from tests.client.mistakes import calls
from tests.doors.hosted import Hosted
from tests.each import every_failure

CALLS = calls()


def called(mistake: str) -> str:
    """The call without the value that is wrong."""
    return mistake.partition("(")[0]


def prepare(broker: Any) -> Any:
    broker.create_topic("t")
    broker.create_topic("u")
    broker.publish_many([1, 2], "t")
    broker.subscribe("c", "t")
    broker.bind("bound/#", "t")
    return broker


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    with (
        Broker(tmp_path_factory.mktemp("here")) as here,
        Hosted(tmp_path_factory.mktemp("there")) as hosted,
        penstock.connect(f"http://127.0.0.1:{hosted.ports['http']}") as there,
    ):
        yield prepare(here), prepare(there)


@pytest.mark.parametrize("call", list(dict.fromkeys(map(called, CALLS))))
def test_a_mistake_is_refused_with_the_same_class_and_text(
    both: tuple[Any, Any], call: str
) -> None:
    with every_failure() as tried:
        for mistake in (one for one in CALLS if called(one) == call):
            with tried(mistake):
                told = []
                for broker in both:
                    with pytest.raises(PenstockError) as caught:
                        CALLS[mistake](broker)
                    told.append((type(caught.value), str(caught.value)))
                assert told[0] == told[1]


def test_what_is_no_mistake_is_none_on_both_sides(both: tuple[Any, Any]) -> None:
    for number, broker in enumerate(both):
        broker.create_topic("t", exist_ok=True, durability="os")
        broker.create_topic(f"timed-{number}", retention_age=timedelta(hours=1), segment_age="2d")
        (info,) = [one for one in broker.topics() if one.topic == f"timed-{number}"]
        assert info.retention_age == 3600
        assert len(broker.read("t", start=timedelta.max, limit=1 << 70)) == 2
        assert broker.read("t", start=timedelta(0)) == []
