"""Every way to read over HTTP: pages, requests that wait, consumers, groups, and streams."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from penstock.doors.http.v1.topics.records import ARROW
from tests.http.asking import Asking
from tests.http.events import Events, Frames
from tests.http.framed import open_websocket
from tests.matrix.house import Got, House, Place
from tests.matrix.reading import Reader, add, got_json, has_end, late

WAIT: Final = 20  # seconds that a request waits for a record


def records_path(place: Place) -> str:
    return f"/v1/topics/{place.topic}/records"


@late("records-page")
def records_page(house: House, place: Place) -> list[Got]:
    found = house.ask("GET", f"{records_path(place)}?from={place.base}")["records"]
    return [got_json(one) for one in found]


@late("records-page-by-name")
def records_by_name(house: House, place: Place) -> list[Got]:
    """Pages of one record each, of every name, put together again."""
    found: list[Got] = []
    offset = place.base
    while not has_end(found):
        path = f"{records_path(place)}?from={offset}&limit=1&names=%23"
        page = house.ask("GET", path)
        assert page["next_offset"] > offset
        offset = page["next_offset"]
        found += [got_json(one) for one in page["records"]]
    return found


@late("arrow-page")
def arrow_page(house: House, place: Place) -> list[Got]:
    path = f"{records_path(place)}?from={place.base}"
    answer = house.asking.ask("GET", path, Accept=ARROW)
    assert answer.status == 200
    found = pa.ipc.open_stream(answer.body).read_all().to_pylist()
    return [Got(one["payload"], one["name"], one["offset"]) for one in found]


class Polling:
    """A request that waits for a record while it is published, then the next."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.asking = Asking(house.http_port)
        self._got: list[Got] = []
        self._next()

    def _next(self) -> None:
        raise NotImplementedError

    def _answered(self, answer: Any) -> None:
        """Look at the answer before the next request goes."""

    def collect(self) -> list[list[Got]]:
        while True:
            answer = self.asking.answer()
            assert answer.status == 200, answer
            self._got += [got_json(one) for one in answer.json["records"]]
            self._answered(answer.json)
            if has_end(self._got) or self._house.left_s < 0.1:
                return [self._got]
            self._next()

    def post(self, path: str, body: Any) -> None:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        self.asking.send(head.encode() + data)

    def close(self) -> None:
        self.asking.close()


class LongPoll(Polling):
    def __init__(self, house: House, place: Place) -> None:
        self._path, self._offset = records_path(place), place.base
        super().__init__(house)

    def _next(self) -> None:
        path = f"{self._path}?from={self._offset}&wait={WAIT}"
        self.asking.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def _answered(self, answer: Any) -> None:
        self._offset = answer["next_offset"]


class ConsumerFetch(Polling):
    def __init__(self, house: House, place: Place) -> None:
        self._path = f"/v1/topics/{place.topic}/consumers/fetching"
        house.ask("PUT", self._path, {"from": place.base})
        super().__init__(house)

    def _next(self) -> None:
        self.post(f"{self._path}/fetch", {"wait": WAIT, "limit": 2})


class GroupFetch(Polling):
    def __init__(self, house: House, place: Place) -> None:
        self._path = f"/v1/topics/{place.topic}/groups/fetching-{place.key}"
        self._start = place.base
        super().__init__(house)

    def _next(self) -> None:
        body = {"wait": WAIT, "limit": 2, "from": self._start}
        self.post(f"{self._path}/fetch", body)

    def _answered(self, answer: Any) -> None:
        done = self.asking.ask("POST", f"{self._path}/ack", {"receipt": answer["receipt"]})
        assert done.status == 200, done


add("records-long-poll", LongPoll)
add("consumer-fetch", ConsumerFetch)
add("group-fetch", GroupFetch)


class SeedConsumer:
    """Takes one message after the other; it is told neither names nor offsets."""

    def __init__(self, house: House, place: Place) -> None:
        self._house = house
        asked = {"topic": place.topic}
        self._asked = house.ask("POST", "/consumer/register", asked) | asked
        del self._asked["status"]
        self._take()  # what others published there before

    def _take(self) -> list[Got]:
        found: list[Got] = []
        while True:
            answer = self._house.asking.ask("GET", "/consumer/consume", self._asked)
            if answer.status == 500:  # the queue is empty
                return found
            message = answer.json.get("message_base64")
            text = answer.json["message"]
            found.append(Got(base64.b64decode(message) if message else text.encode()))

    def collect(self) -> list[list[Got]]:
        return [self._take()]

    def close(self) -> None:
        pass


add("seed-consume", SeedConsumer)


class SseReader:
    def __init__(self, house: House, place: Place, start: str) -> None:
        self._house = house
        path = f"/v1/topics/{place.topic}/stream?from={start}"
        self._events = Events(house.http_port, path)
        assert self._events.next().kind == "start"

    def collect(self) -> list[list[Got]]:
        found: list[Got] = []
        while not has_end(found):
            self._events._client._socket.settimeout(self._house.left_s)
            (record,) = self._events.records(1)
            found.append(got_json(record))
        return [found]

    def close(self) -> None:
        self._events.close()


class FrameReader:
    def __init__(self, house: House, place: Place, start: str) -> None:
        path = f"/v1/topics/{place.topic}/stream?from={start}"
        self._frames = Frames(open_websocket(house.http_port, path))
        assert self._frames.next()["type"] == "start"

    def collect(self) -> list[list[Got]]:
        found: list[Got] = []
        while not has_end(found):
            found += [got_json(one) for one in self._frames.records(1)]
        return [found]

    def close(self) -> None:
        self._frames.socket.close()


class Opened:
    """Opens a reader of history only when everything is stored."""

    def __init__(self, opening: Callable[[], Reader]) -> None:
        self._opening = opening
        self._reader: Reader | None = None

    def collect(self) -> list[list[Got]]:
        self._reader = self._opening()
        return self._reader.collect()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def opened_late(kind: Callable[[House, Place, str], Reader]) -> Callable[[House, Place], Reader]:
    return lambda house, place: Opened(lambda: kind(house, place, str(place.base)))


add("sse", lambda house, place: SseReader(house, place, "latest"))
add("sse-history", opened_late(SseReader), needs_topic=False)
add("websocket-stream", lambda house, place: FrameReader(house, place, "latest"))
add("websocket-stream-history", opened_late(FrameReader), needs_topic=False)
