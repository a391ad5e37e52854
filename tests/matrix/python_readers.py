"""Every way to read in Python: the clients, and the program that serves."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import penstock
from penstock import Record
from penstock.app.server import Server
from tests.matrix.house import END, Got, House, Place
from tests.matrix.reading import Reader, add, got_record, has_end, late


class Pumped:
    """An iterator that blocks, read by a thread up to the end."""

    def __init__(self, house: House, records: Iterator[Record]) -> None:
        self._house = house
        self._queue: queue.SimpleQueue[Got] = queue.SimpleQueue()
        threading.Thread(target=self._pump, args=(records,), daemon=True).start()

    def _pump(self, records: Iterator[Record]) -> None:
        for record in records:
            self._queue.put(got_record(record))
            if record.payload == END:
                return

    def collect(self) -> list[list[Got]]:
        found: list[Got] = []
        while not has_end(found):
            found.append(self._queue.get(timeout=self._house.left_s))
        return [found]

    def close(self) -> None:
        pass


async def follow(records: AsyncIterator[Record], found: list[Got]) -> None:
    async for record in records:
        found.append(got_record(record))
        if record.payload == END:
            return


class Followed:
    """Something that fills a list on an event loop, up to the end."""

    def __init__(
        self,
        house: House,
        call: Callable[[Any], Any],
        work: Callable[[list[Got]], Any],
    ) -> None:
        self._house = house
        self._call = call
        self._got: list[Got] = []

        async def begin() -> asyncio.Task[None]:
            return asyncio.get_running_loop().create_task(work(self._got))

        self._task = call(begin)

    def collect(self) -> list[list[Got]]:
        async def finish() -> None:
            await asyncio.wait([self._task], timeout=self._house.left_s)

        self._call(finish)
        return [self._got]

    def close(self) -> None:
        async def cancel() -> None:
            self._task.cancel()

        self._call(cancel)


def aio_stream(house: House, place: Place) -> Reader:
    async def work(got: list[Got]) -> None:
        await follow(house.aio.stream(place.topic, start=place.base), got)

    return Followed(house, lambda begin: house.loop.call(begin()), work)


def aio_handler(house: House, place: Place) -> Reader:
    """A function that the client calls with every record."""

    async def work(got: list[Got]) -> None:
        has_ended = asyncio.Event()

        def handle(record: Record) -> None:
            got.append(got_record(record))
            if record.payload == END:
                has_ended.set()

        async with penstock.aio.connect(house.url) as client:
            client.handler("#", topic=place.topic)(handle)
            running = asyncio.create_task(client.run(start=place.base))
            await has_ended.wait()
            running.cancel()

    return Followed(house, lambda begin: house.loop.call(begin()), work)


def broker_stream(house: House, place: Place) -> Reader:
    """The program that serves reads itself."""

    async def open_stream(server: Server) -> AsyncIterator[Record]:
        return server.broker.stream(place.topic)

    records = house.hosted.run(open_stream)

    def run(begin: Callable[[], Any]) -> Any:
        return house.hosted.run(lambda server: begin())

    return Followed(house, run, partial(follow, records))


class ClientConsumer:
    """A consumer of the Python client that is behind, and then is not."""

    def __init__(self, house: House, place: Place) -> None:
        self._client, self._topic = house.client, place.topic
        house.client.subscribe(f"client-{place.key}", place.topic, start=place.base)
        self._consumer = f"client-{place.key}"

    def collect(self) -> list[list[Got]]:
        found = self._client.consume(self._consumer, self._topic)
        assert self._client.consume(self._consumer, self._topic) == []
        return [[got_record(one) for one in found]]

    def close(self) -> None:
        pass


add("client-stream", lambda house, place: Pumped(house, house.client.stream(place.topic)))
add("aio-client-stream", aio_stream)
add("aio-client-handler", aio_handler)
add("broker-stream", broker_stream)
add("client-consume", ClientConsumer)


@late("client-read")
def client_read(house: House, place: Place) -> list[Got]:
    return [got_record(one) for one in house.client.read(place.topic, start=place.base)]


@late("aio-client-consume")
def aio_client_consume(house: House, place: Place) -> list[Got]:
    async def work() -> list[Record]:
        await house.aio.subscribe(f"aio-{place.key}", place.topic, start=place.base)
        return await house.aio.consume(f"aio-{place.key}", place.topic)

    return [got_record(one) for one in house.loop.call(work())]


@late("client-group")
def client_group(house: House, place: Place) -> list[Got]:
    group = house.client.join_group(f"client-{place.key}", place.topic)
    found: list[Got] = []
    while given := group.fetch(2, start=place.base):
        found += [got_record(one.record) for one in given]
        group.ack(given)
    return found


@late("broker-consume")
def broker_consume(house: House, place: Place) -> list[Got]:
    async def work(server: Server) -> list[Record]:
        await server.broker.subscribe(f"inside-{place.key}", place.topic, start=place.base)
        return await server.broker.consume(f"inside-{place.key}", place.topic)

    return [got_record(one) for one in house.hosted.run(work)]


@late("broker-read")
def broker_read(house: House, place: Place) -> list[Got]:
    async def work(server: Server) -> list[Record]:
        return await server.broker.read(place.topic, start=place.base)

    return [got_record(one) for one in house.hosted.run(work)]
