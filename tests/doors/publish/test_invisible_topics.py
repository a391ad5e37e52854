"""Is a topic whose name nobody can see refused everywhere, and does an old one stay usable?"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from penstock.app.server import Server
from penstock.broker.settings import topic_settings
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire
from tests.http.asking import Asking

INVISIBLE = pytest.mark.parametrize("topic", ["\u200b", " ", "\u3164\u2800", "\u200d\U000e0041"])
RULE = "at least one visible character"


@INVISIBLE
def test_nobody_can_create_one(tmp_path: Path, topic: str) -> None:
    with Hosted(tmp_path, mqtt__auto_create_topics=5) as broker:
        with Asking(broker.ports["http"]) as client:
            refused = client.ask("PUT", f"/v1/topics/{quote(topic)}")
            assert (refused.status, RULE in refused.detail) == (400, True)
            for path, field in (("/topics", "name"), ("/producer/register", "topic")):
                refused = client.ask("POST", path, {field: topic})
                assert refused.status == 400 and RULE in refused.json["message"]
        with Wire(broker.port, "writer") as writer:  # a fine name for a message
            writer.connect()
            writer.publish(f"{topic}/a", b"x", 1)
        assert names(broker) == ["default"]


def names(broker: Hosted) -> list[str]:
    return broker.call(lambda: [one.declared for one in broker.exchange.engine.topics.declared()])


@INVISIBLE
def test_one_that_is_there_already_stays_usable(tmp_path: Path, topic: str) -> None:
    async def create(server: Server) -> None:  # as releases before the rule did
        engine = broker.exchange.engine
        await engine.topics.create_built_in(topic, topic_settings(engine.settings, {}))

    with Hosted(tmp_path) as broker:
        broker.run(create)
    path = f"/v1/topics/{quote(topic)}"
    with Hosted(tmp_path) as broker, Asking(broker.ports["http"]) as client:
        assert topic in names(broker)
        assert client.ask("PUT", path).status == 200
        assert client.ask("POST", f"{path}/records", {"payload": "x"}).status == 200
        with Wire(broker.port, "writer") as writer:
            writer.connect()
            writer.publish(f"{topic}/a", b"y", 1)
        records = client.ask("GET", f"{path}/records").json["records"]
        assert [record["payload"] for record in records] == ["x", "y"]
        assert client.ask("DELETE", path).status == 204
        assert topic not in names(broker)
