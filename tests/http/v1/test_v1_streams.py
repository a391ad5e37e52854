"""Streams over SSE and WebSocket: the start, what follows, and coming back."""

from __future__ import annotations

import os
import re
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from penstock.doors.http.v1.topics import streams
from tests.cutting_proxy import CuttingProxy
from tests.doors.hosted import Hosted
from tests.http.asking import Asking
from tests.http.events import Events, Frames
from tests.http.framed import open_websocket
from tests.waiting import wait_until


@pytest.fixture
def topic(client: Asking, name: str) -> str:
    """The path of a topic with ten messages."""
    path = f"/v1/topics/{name}"
    client.ask("PUT", path)
    store(client, path, range(10))
    return path


def store(client: Asking, topic: str, numbers: Any) -> None:
    answer = client.ask("POST", f"{topic}/records", [{"payload": {"n": n}} for n in numbers])
    assert answer.status == 200, answer


@pytest.fixture(autouse=True)
def opened() -> Iterator[None]:
    """Readers of a test are closed when it ends."""
    yield
    while OPENED:
        OPENED.pop()()


OPENED: list[Callable[[], None]] = []


def sse(broker: Hosted, topic: str, last_seen: int | None = None, **query: Any) -> Events:
    headers = {} if last_seen is None else {"Last_Event_ID": str(last_seen)}
    events = Events(broker.ports["http"], stream_path(topic, **query), **headers)
    OPENED.append(events.close)
    return events


def frames(broker: Hosted, topic: str, **query: Any) -> Frames:
    socket = open_websocket(broker.ports["http"], stream_path(topic, **query), max_size=None)
    OPENED.append(socket.close)
    return Frames(socket)


def stream_path(topic: str, **query: Any) -> str:
    return f"{topic}/stream?" + urlencode({key.rstrip("_"): value for key, value in query.items()})


def numbers(records: list[dict[str, Any]]) -> list[int]:
    return [one["payload"]["n"] for one in records]


def streams_open(broker: Hosted) -> int:
    engine = broker.exchange.engine
    return broker.call(lambda: sum(len(found) for found in engine._streams.values()))


# The start


@pytest.mark.parametrize(
    ("start", "offset"), [("earliest", 0), ("latest", 10), (7, 7), (10, 10), ("-1h", 0)]
)
def test_the_server_says_first_where_it_starts(
    broker: Hosted, topic: str, name: str, start: Any, offset: int
) -> None:
    event = sse(broker, topic, from_=start).next()
    assert (event.kind, event.id) == ("start", str(offset - 1))
    assert event.data == {"topic": name, "next_offset": offset}
    frame = frames(broker, topic, from_=start).next()
    assert frame == {"type": "start", "topic": name, "next_offset": offset}


def test_without_a_position_a_stream_starts_with_what_comes_next(
    broker: Hosted, client: Asking, topic: str
) -> None:
    events, socket = sse(broker, topic), frames(broker, topic)
    assert events.next().data["next_offset"] == socket.next()["next_offset"] == 10
    store(client, topic, [10])
    assert numbers(events.records(1)) == numbers(socket.records(1)) == [10]


# What follows


def test_history_is_followed_by_what_is_new_with_no_gap_and_no_repeat(
    broker: Hosted, client: Asking, topic: str
) -> None:
    events, socket = sse(broker, topic, from_=0), frames(broker, topic, from_=0)
    assert events.next().kind == "start"
    for first in range(10, 30, 5):
        store(client, topic, range(first, first + 5))
    assert numbers(events.records(30)) == list(range(30))
    assert numbers(socket.records(30)) == list(range(30))


def test_filters_choose_and_offsets_stay_those_of_the_topic(
    broker: Hosted, client: Asking, topic: str, name: str
) -> None:
    socket = frames(broker, topic, from_=0, where="payload.n >= 8 OR payload.n = 2", names=name)
    assert [one["offset"] for one in socket.records(3)] == [2, 8, 9]
    client.ask("POST", f"{topic}/records", {"payload": {"n": 100}, "name": "another/name"})
    store(client, topic, [1, 50])
    (record,) = socket.records(1)
    assert (record["payload"], record["offset"]) == ({"n": 50}, 12)


def test_silence_is_filled_with_heartbeats_that_say_where_the_reader_is(
    broker: Hosted, client: Asking, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.05)
    events, socket = sse(broker, topic, from_=0), frames(broker, topic, where="payload.n = -1")
    assert events.next().kind == "start" and numbers(events.records(10))
    store(client, topic, [10])
    assert socket.next()["type"] == "start"
    while socket.next_offset < 11:
        assert socket.next()["type"] == "heartbeat"
    for _ in range(5):  # meanwhile the other reader is sent as many
        assert socket.next()["type"] == "heartbeat"
    store(client, topic, [11])
    assert numbers(events.records(2)) == [10, 11]
    assert events.beats >= 2


# Coming back


def test_a_reader_that_comes_back_goes_on_behind_what_it_saw(
    broker: Hosted, client: Asking, topic: str
) -> None:
    events = sse(broker, topic, from_="earliest")
    assert events.next().kind == "start" and numbers(events.records(4)) == [0, 1, 2, 3]
    events.close()
    again = sse(broker, topic, last_seen=3, from_="latest")  # what it saw wins
    assert again.next().data["next_offset"] == 4
    assert numbers(again.records(6)) == [4, 5, 6, 7, 8, 9]
    first = sse(broker, topic, last_seen=-1, from_="latest")
    assert first.next().data["next_offset"] == 0
    socket = frames(broker, topic, from_=0)
    socket.records(10)
    assert socket.next_offset == 10


# The end


def test_a_stream_ends_with_its_topic(broker: Hosted, client: Asking, topic: str) -> None:
    events, socket = sse(broker, topic), frames(broker, topic)
    assert events.next().kind == "start" and socket.next()["type"] == "start"
    assert client.ask("DELETE", topic).status == 204
    assert events.next().kind == "end"
    with pytest.raises(EOFError):
        events.next()
    with pytest.raises(ConnectionClosed):
        socket.next()
    assert socket.socket.protocol.close_code == 1001


def test_a_stream_ends_with_the_server(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker:
        with Asking(broker.ports["http"]) as client:
            client.ask("PUT", "/v1/topics/t")
        events, socket = sse(broker, "/v1/topics/t"), frames(broker, "/v1/topics/t")
        assert events.next().kind == "start" and socket.next()["type"] == "start"
    with pytest.raises(EOFError):
        events.next()
    with pytest.raises(ConnectionClosed):
        socket.next()


def test_readers_that_go_leave_nothing_behind(broker: Hosted, client: Asking, topic: str) -> None:
    wait_until(lambda: streams_open(broker) == 0)
    events = [sse(broker, topic) for _ in range(3)]
    sockets = [frames(broker, topic) for _ in range(3)]
    wait_until(lambda: streams_open(broker) == 6)
    for one in events:
        one.close()
    for reader in sockets:
        reader.socket.close()
    wait_until(lambda: streams_open(broker) == 0)
    assert client.ask("HEAD", f"{topic}/stream").status == 200
    assert streams_open(broker) == 0


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"from": "11"}, 409),
        ({"from": "-5"}, 400),
        ({"from": "soon"}, 400),
        ({"where": "payload ="}, 400),
        ({"names": "#/a"}, 400),
        ({"overflow": "panic"}, 400),
        ({"limit": "5"}, 400),
    ],
)
def test_what_cannot_be_streamed_says_so_before_it_starts(
    broker: Hosted, client: Asking, topic: str, query: dict[str, str], status: int
) -> None:
    path = f"{topic}/stream?{urlencode(query)}"
    assert client.ask("GET", path).status == status
    with pytest.raises(InvalidStatus) as raised:
        open_websocket(broker.ports["http"], path)
    assert raised.value.response.status_code == status
    assert client.ask("GET", topic.replace("test", "other") + "/stream").status == 404


@pytest.mark.parametrize("seen", ["x", "-2", "1.5", "9" * 30])
def test_a_place_that_cannot_be_is_400(client: Asking, topic: str, seen: str) -> None:
    assert client.ask("GET", f"{topic}/stream", Last_Event_ID=seen).status == 400


def test_a_place_past_the_end_is_409(client: Asking, topic: str) -> None:
    assert client.ask("GET", f"{topic}/stream", Last_Event_ID="10").status == 409


# Slow readers


def fill(client: Asking, topic: str, count: int) -> None:
    """So much that neither the network nor a backlog holds it."""
    for at in range(count):
        body = [{"payload": {"n": at * 10 + n, "fill": "x" * 100_000}} for n in range(10)]
        assert client.ask("POST", f"{topic}/records", body).status == 200


def overflows(broker: Hosted) -> int:
    engine = broker.exchange.engine
    return broker.call(
        lambda: sum(one.overflows for found in engine._streams.values() for one in found)
    )


def test_a_slow_reader_falls_back_to_the_log_and_misses_nothing(
    broker: Hosted, client: Asking, name: str
) -> None:
    topic = f"/v1/topics/{name}"
    client.ask("PUT", topic)
    events = sse(broker, topic)
    socket = frames(broker, topic)
    assert events.next().kind == "start" and socket.next()["type"] == "start"
    fill(client, topic, 30)
    wait_until(lambda: overflows(broker) > 0)
    held = broker.call(lambda: [one.out_bytes for one in broker.http._connections])
    assert max(held) < 8_000_000  # what was taken at once, never all of the 30 MB
    assert numbers(events.records(300)) == list(range(300))
    assert numbers(socket.records(300)) == list(range(300))


def test_a_slow_reader_that_wants_so_is_let_go(broker: Hosted, client: Asking, name: str) -> None:
    topic = f"/v1/topics/{name}"
    client.ask("PUT", topic)
    events = sse(broker, topic, overflow="close")
    assert events.next().kind == "start"
    fill(client, topic, 30)
    seen = []
    while (event := events.next()).kind == "":
        seen.append(event.data["payload"]["n"])
    assert event.kind == "overflow"
    assert seen == list(range(len(seen))) and len(seen) < 300
    with pytest.raises(EOFError):
        events.next()
    again = sse(broker, topic, last_seen=len(seen) - 1, overflow="close")
    assert again.next().data["next_offset"] == len(seen)
    assert numbers(again.records(300 - len(seen))) == list(range(len(seen), 300))


# Under fire


@pytest.mark.parametrize("kind", ["sse", "websocket"])
@pytest.mark.parametrize("seed", [1, 2])
def test_readers_whose_connections_are_cut_see_every_record_once_while_publishers_run(
    broker: Hosted, client: Asking, name: str, kind: str, seed: int
) -> None:
    topic = f"/v1/topics/{name}"
    client.ask("PUT", topic)
    count = 3_000

    def publish(first: int) -> None:
        with Asking(broker.ports["http"]) as publisher:
            for at in range(first, count, 30):
                store(publisher, topic, range(at, at + 10))

    threads = [threading.Thread(target=publish, args=(at,)) for at in (0, 10, 20)]
    seen: list[int] = []
    with CuttingProxy(broker.ports["http"], seed, 200_000) as proxy:
        for thread in threads:
            thread.start()
        while len(seen) < count:
            try:
                (read_events if kind == "sse" else read_frames)(proxy.port, topic, seen, count)
            except (EOFError, OSError, ConnectionClosed):
                continue
        assert proxy.cuts > 1
    for thread in threads:
        thread.join()
    assert seen == list(range(count)), f"seed {seed}"


def read_events(port: int, topic: str, seen: list[int], count: int) -> None:
    events = Events(port, f"{topic}/stream?from=0", **last_event(seen))
    assert events.next().data["next_offset"] == len(seen)
    while len(seen) < count:
        seen.append(events.next().data["offset"])


def last_event(seen: list[int]) -> dict[str, str]:
    return {"Last_Event_ID": str(seen[-1])} if seen else {}


def read_frames(port: int, topic: str, seen: list[int], count: int) -> None:
    with open_websocket(port, f"{topic}/stream?from={len(seen)}") as socket:
        reader = Frames(socket)
        assert reader.next()["next_offset"] == len(seen)
        while len(seen) < count:
            seen += [one["offset"] for one in reader.next().get("records", ())]


def test_a_thousand_readers_of_the_same_history_read_each_chunk_from_disk_once(
    tmp_path: Path,
) -> None:
    count = 8
    settings = {"log__segment_bytes": "2 MiB"}  # most are closed, the newest is not
    with Hosted(tmp_path, **settings) as broker, Asking(broker.ports["http"]) as client:
        client.ask("PUT", "/v1/topics/t")
        for at in range(count):  # about 1 MB each, which does not shrink
            fillers = [{"payload": os.urandom(5_000).hex(), "name": "filler"} for _ in range(100)]
            body = [{"payload": at, "name": "wanted"}, *fillers]
            assert client.ask("POST", "/v1/topics/t/records", body).status == 200
    reads = {}
    for readers in (1, 1_000):
        with Hosted(tmp_path, **settings) as broker:  # with nothing in memory
            assert resume(broker, readers, count) == [[101 * at for at in range(count)]] * readers
            log: Any = broker.exchange.engine.topics.get("t").log
            reads[readers] = broker.call(lambda log=log: log.loads)
            with Asking(broker.ports["http"]) as client:
                said = f"\npenstock_read_chunks_total {reads[readers]}\n"
                assert said in client.ask("GET", "/metrics").body.decode()
    assert reads[1_000] == reads[1] > 2


def resume(broker: Hosted, readers: int, count: int) -> list[list[int]]:
    """The offsets that each reader of the whole history is given, all at once."""
    port = broker.ports["http"]
    request = "GET /v1/topics/t/stream?from=0&names=wanted HTTP/1.1\r\nHost: localhost\r\n\r\n"
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(readers)]
    for one in sockets:
        one.sendall(request.encode())
    return drain(sockets, count)


def drain(sockets: list[socket.socket], count: int) -> list[list[int]]:
    """The offsets that each received, read side by side until all have `count`."""
    chosen = selectors.DefaultSelector()
    rests = dict.fromkeys(sockets, b"")
    seen: dict[socket.socket, list[int]] = {one: [] for one in sockets}
    for one in sockets:
        chosen.register(one, selectors.EVENT_READ)
    while chosen.get_map():
        for key, _ in chosen.select():
            one = key.fileobj
            assert isinstance(one, socket.socket)
            data = rests[one] + one.recv(1 << 18)
            cut = data.rfind(b"\n") + 1
            rests[one] = data[cut:]
            seen[one] += [int(found) for found in re.findall(rb"^id: (\d+)$", data[:cut], re.M)]
            if len(seen[one]) >= count:
                chosen.unregister(one)
                one.close()
    return list(seen.values())
