"""Storing and replaying over HTTP, beside servers that make the same promise."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from bench.engines import Engine
from bench.http.flows import Asked, Contender, compare, conversing
from bench.http.peers import (
    NATS,
    POSTGRES,
    REDIS,
    TOPIC,
    Absent,
    on_one_disk,
    postgres,
    start_nats,
    start_penstock,
    start_redis,
    start_sink,
)
from bench.http.talks import (
    Talk,
    http_ask,
    http_request,
    http_talk,
    nats_ask,
    nats_publish,
    nats_publisher,
    nats_talk,
    postgres_talk,
    produce_requests,
    record_requests,
    redis_command,
    redis_requests,
    redis_talk,
    texts,
)
from bench.measure import Bar, Row
from bench.mqtt.servers import CEILING, Server
from bench.run import Bench

CROWD: Final = 100
BATCH: Final = 100
PAGE: Final = 1_000
CONNECTIONS: Final = 16
ANSWER_BYTES: Final = 80  # about what a single message is answered with
ARROW: Final = "Accept: application/vnd.apache.arrow.stream"


class Field:
    """The servers of one row, started for it and stopped after it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._stack = ExitStack()
        self._directory = Path()

    def __enter__(self) -> Field:
        self._directory = self._stack.enter_context(self.bench.scratch())
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def _run(self, server: Server) -> Server:
        self._stack.callback(server.stop)
        server.wait_ready()
        return server

    def start(self, start: Callable[[Path], Server]) -> Server | None:
        """A peer, or None where this machine does not have it, which the row says."""
        try:
            return self._run(start(self._directory))
        except Absent:
            return None

    def penstock(self, engine: Engine) -> Server:
        server, _ = start_penstock(engine, self._directory / engine.name)
        self._run(server)
        http_ask(server.port, "PUT", f"/v1/topics/{TOPIC}")
        return server

    def sink(self, request: bytes, answer_bytes: int) -> Server:
        return self._run(start_sink(len(request), answer_bytes))

    def postgres(self) -> str:
        """The path of PostgreSQL's socket; empty where there is none."""
        import psycopg

        try:
            url = self._stack.enter_context(postgres(2 * CROWD))
        except Absent:
            return ""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "create table single (messageid bigint generated always as identity primary key,"
                " message bytea)"
            )
            return f"{connection.info.host}/.s.PGSQL.{connection.info.port}"


def single_rows(bench: Bench) -> Iterator[Row]:
    """Requests of one message, alone and side by side, by both ways to store one."""
    for connections in (1, CROWD):
        for path in ("/v1/…/records", "/producer/produce"):
            with Field(bench) as field:
                yield from _single(field, connections, path)


def _single(field: Field, connections: int, path: str) -> list[Row]:
    is_crowd = connections > 1
    contenders: dict[str, Contender] = {}
    asked = [Asked(REDIS, Bar(0.25) if is_crowd else Bar(0.6, is_required=False))]
    redis = field.start(start_redis)
    if redis is not None:
        contenders[REDIS] = redis_contender(redis, connections, 1)
    notes = []
    if is_crowd:
        asked += [Asked(POSTGRES, Bar(1.2)), Asked(NATS, Bar(4))]
        socket_path = field.postgres()
        if socket_path:
            contenders[POSTGRES] = conversing(partial(postgres_talk, socket_path), connections)
            if not on_one_disk(field.bench.directory):
                notes.append("PostgreSQL's data lies on another file system")
        nats = field.start(start_nats)
        if nats is not None:
            make_stream(nats.port)
            contender = conversing(partial(nats_publisher, nats.port), connections)
            contenders[NATS] = Contender(contender.turn, nats)
    requests = record_requests(1)
    for engine in field.bench.engines:
        server = field.penstock(engine)
        if path.startswith("/producer"):
            fields = http_ask(server.port, "POST", "/producer/register", {"topic": TOPIC})
            requests = produce_requests(fields["producer_id"])
        contenders[engine.name] = _http(server, requests, connections)
    sink = field.sink(requests[0], ANSWER_BYTES)
    contenders[CEILING] = _http(sink, requests, connections)
    what = f"{connections} connections × 1 message" if is_crowd else "one message in flight"
    return compare(field.bench, f"{path}, {what}", contenders, asked, notes)


def _http(server: Server, requests: list[bytes], connections: int, batch: int = 1) -> Contender:
    contender = conversing(partial(http_talk, server.port, requests), connections, batch)
    return Contender(contender.turn, server)


def redis_contender(server: Server, connections: int, batch: int) -> Contender:
    """Its stream lies in memory too, so it begins anew each turn."""
    requests = redis_requests(batch)
    talks = partial(redis_talk, server.port, requests, 2 * batch)
    conversation = conversing(talks, connections, batch)

    def turn(turn_s: float) -> float:
        empty = redis_talk(server.port, [redis_command("DEL", TOPIC)], 1)
        empty.call()
        empty.sock.close()
        return conversation.turn(turn_s)

    return Contender(turn, server)


def make_stream(port: int) -> None:
    stream = {"name": TOPIC, "subjects": [TOPIC], "storage": "file", "retention": "limits"}
    nats_ask(port, f"STREAM.CREATE.{TOPIC}", stream)


def batch_rows(bench: Bench) -> Iterator[Row]:
    """Batches of 100 on one connection and on many, next to as many XADD in flight."""
    for connections in (1, CONNECTIONS):
        with Field(bench) as field:
            contenders: dict[str, Contender] = {}
            redis = field.start(start_redis)
            if redis is not None:
                contenders[REDIS] = redis_contender(redis, connections, BATCH)
            requests = record_requests(BATCH)
            for engine in bench.engines:
                server = field.penstock(engine)
                contenders[engine.name] = _http(server, requests, connections, BATCH)
            sink = field.sink(requests[0], 20 * BATCH)
            contenders[CEILING] = _http(sink, requests, connections, BATCH)
            many = "connections" if connections > 1 else "connection"
            scenario = f"batches of {BATCH}, {connections} {many}"
            yield from compare(bench, scenario, contenders, [Asked(REDIS, Bar(1.0))])


def replay_rows(bench: Bench) -> Iterator[Row]:
    """All that is stored, from the first on, by so many at once; JSON, and as an Arrow stream."""
    count = (50 if bench.is_quick else 200) * PAGE
    with Field(bench) as field:
        peers: dict[str, Contender] = {}
        redis = field.start(start_redis)
        if redis is not None:
            _fill_redis(redis, count)
            peers[REDIS] = _paging(partial(_xrange, redis.port, count), count, redis)
        nats = field.start(partial(start_nats, syncs=False))
        if nats is not None:
            make_stream(nats.port)
            _fill_nats(nats, count)
            peers[NATS] = _paging(partial(_pull, nats.port), count, nats)
        servers = {}
        for engine in bench.engines:
            servers[engine.name] = field.penstock(engine)
            fill(servers[engine.name], count)
        for kind, lines in (("JSON", ()), ("Arrow", (ARROW,))):
            contenders = dict(peers)
            for name, server in servers.items():
                contenders[name] = _paging(
                    partial(_pages, server.port, count, lines), count, server
                )
            page_bytes = _page_bytes(next(iter(servers.values())), lines)
            sink = field.sink(_page_request(count, 0, lines), page_bytes)
            contenders[CEILING] = _paging(partial(_pages, sink.port, count, lines), count, sink)
            is_required = kind == "JSON"
            asked = [Asked(REDIS, Bar(0.5, is_required=is_required))]
            asked += [Asked(NATS, Bar(1.0, is_required=is_required))]
            scenario = f"replay, {PAGE:,} a fetch, {kind}"
            yield from compare(bench, scenario, contenders, asked)


def _paging(open_talk: Callable[[], Talk], count: int, server: Server) -> Contender:
    """A turn reads all there is, again and again; opening a conversation is not counted."""

    def turn(turn_s: float) -> float:
        taken_s, read = 0.0, 0
        while taken_s < turn_s:
            talk = open_talk()
            begin = time.perf_counter()
            for _ in range(count // PAGE):
                talk.call()
            taken_s += time.perf_counter() - begin
            read += count
            talk.sock.close()
        return read / taken_s

    return Contender(turn, server)


def _page_request(count: int, start: int, lines: tuple[str, ...]) -> bytes:
    """All of one size: the ceiling's server counts them so."""
    width = len(str(count))
    path = f"/v1/topics/{TOPIC}/records?from={start:0{width}}&limit={PAGE}"
    return http_request("GET", path, b"", *lines)


def _pages(port: int, count: int, lines: tuple[str, ...]) -> Talk:
    requests = [_page_request(count, start, lines) for start in range(0, count, PAGE)]
    return http_talk(port, requests)


def _page_bytes(server: Server, lines: tuple[str, ...]) -> int:
    """How long the body of one page is."""
    talk = http_talk(server.port, [_page_request(PAGE, 0, lines)])
    with talk.sock as sock:
        talk.ask()
        head = sock.recv(4096)
    at = head.index(b"Content-Length: ") + 16
    return int(head[at : head.index(b"\r\n", at)])


def fill(server: Server, count: int, topic: str = TOPIC) -> None:
    """Store readings of sensors, a thousand at a time."""
    talk = http_talk(server.port, record_requests(PAGE, topic))
    for _ in range(count // PAGE):
        talk.call()
    talk.sock.close()


def _fill_redis(server: Server, count: int) -> None:
    """Under ids that are known, so that every page can be asked for beforehand."""
    messages = texts(PAGE)
    requests = [
        b"".join(
            redis_command("XADD", TOPIC, f"{start + at + 1}-0", "p", text)
            for at, text in enumerate(messages)
        )
        for start in range(0, count, PAGE)
    ]
    talk = redis_talk(server.port, requests, 2 * PAGE)
    for _ in requests:
        talk.call()
    talk.sock.close()


def _xrange(port: int, count: int) -> Talk:
    requests = [
        redis_command("XRANGE", TOPIC, f"{start + 1}-0", "+", "COUNT", str(PAGE))
        for start in range(0, count, PAGE)
    ]
    # A line says how many; then of each: two parts, length and id, two fields, length and text.
    return redis_talk(port, requests, 1 + PAGE * 8)


def _fill_nats(server: Server, count: int) -> None:
    sock, inbox, answers = nats_talk(server.port, 2 * PAGE)
    request = b"".join(nats_publish(TOPIC, inbox, text) for text in texts(PAGE))
    talk = Talk(sock, [request], answers)
    for _ in range(count // PAGE):
        talk.call()
    sock.close()


def _pull(port: int) -> Talk:
    """A consumer that begins at the first message and acknowledges nothing."""
    sock, inbox, answers = nats_talk(port, 2 * PAGE)
    name = inbox.replace(".", "-")
    config = {"name": name, "ack_policy": "none", "deliver_policy": "all", "mem_storage": True}
    nats_ask(port, f"CONSUMER.CREATE.{TOPIC}.{name}", {"stream_name": TOPIC, "config": config})
    asks = nats_publish(
        f"$JS.API.CONSUMER.MSG.NEXT.{TOPIC}.{name}", inbox, json.dumps({"batch": PAGE})
    )
    return Talk(sock, [asks], answers)
