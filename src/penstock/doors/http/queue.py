"""The HTTP queue of seed 001: topics, producers and consumers by id, one message at a time.

Fields come in a JSON body or in the query string. Answers are `{"status": "success", …}` with 200,
or `{"status": "failure", "message": …}`: 400 for a request that is invalid, 500 for
one that cannot be done. A produced message is durable when 200 says so.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import msgspec

from penstock.broker.engine import Engine
from penstock.broker.publish.submissions import Submissions
from penstock.broker.queue.seed_ids import ID_DIGITS_MIN
from penstock.broker.settings import topic_settings
from penstock.broker.topic.reading import Selection, read_records
from penstock.broker.topic.topics import Topic
from penstock.core.access import PUBLISH, Gate, authorise, denial
from penstock.core.delivery.run import run_of
from penstock.core.naming.names import check_topic, quoted, topic_key
from penstock.doors.http.routing.endpoints import Endpoints
from penstock.doors.http.routing.errors import problem_of, status_of
from penstock.doors.http.routing.needs import (
    Needs,
    check_manage,
    check_owner,
    check_read,
    may_see,
    publish_refusal,
)
from penstock.doors.http.routing.router import Route
from penstock.doors.http.routing.schemas import TOPIC, shown_as
from penstock.doors.http.v1.describing import Facts, Field
from penstock.doors.http.v1.reading import READ_BYTES_MAX
from penstock.doors.http.v1.topics.page import records_size
from penstock.doors.http.wire.counting import check_values
from penstock.doors.http.wire.messages import (
    JSON,
    Answer,
    HttpError,
    Request,
    Response,
    json_response,
)
from penstock.doors.http.wire.pieces import base64_pieces, cut, is_text, text_pieces
from penstock.doors.http.wire.room import Room
from penstock.model.errors import (
    InvalidTopic,
    NotAuthorized,
    PenstockError,
    QuotaExceeded,
    RefusedError,
    TooLarge,
)
from penstock.model.record import KIND_JSON, KIND_TEXT, Record

SHOWN_CHARS_MAX: Final = 200  # of a value that is told back
SUCCESS: Final = Response(200, b'{"status":"success"}')
_encode: Final = msgspec.json.Encoder().encode


class Failure(msgspec.Struct):
    """400: the request is invalid. 403, 429, 500: it cannot be done, as the message says."""

    status: Literal["failure"]
    message: str


class Done(msgspec.Struct):
    status: Literal["success"]


class Topics(Done):
    topics: list[str]


class Consumer(Done):
    consumer_id: str


class Producer(Done):
    producer_id: str


class Taken(Done):
    """What was produced; bytes that are not UTF-8 also come in base64."""

    message: Any
    message_base64: str = ""


class Size(Done):
    size: int


Name = Annotated[str, shown_as(TOPIC)]
Id = str | int


class Of(msgspec.Struct):
    topic: Name


class Produce(msgspec.Struct):
    topic: Name
    producer_id: Id
    message: str


class _NewTopic(msgspec.Struct):
    """The name of a topic, in one of three fields."""

    topic_name: Name | msgspec.UnsetType = msgspec.UNSET
    name: Name | msgspec.UnsetType = msgspec.UNSET
    topic: Name | msgspec.UnsetType = msgspec.UNSET


_ONE_OF: Final = {"oneOf": [{"required": [key]} for key in ("topic_name", "name", "topic")]}
NewTopic = Annotated[_NewTopic, msgspec.Meta(extra_json_schema=_ONE_OF)]
ASKS: Final = (
    Field("topic", "name of the topic", TOPIC, is_required=True),
    Field("consumer_id", "id from the registration", is_required=True),
)


class _Produce(msgspec.Struct):
    """A whole request to produce, as nearly all of them come."""

    topic: str
    producer_id: str
    message: str


_produce: Final = msgspec.json.Decoder(_Produce).decode


def add_routes(door: Endpoints, submissions: Submissions) -> None:
    queue = QueueDoor(door.engine, submissions, door.room)
    for method, path, handler, summary, gives, takes in (
        ("POST", "/topics", queue.create_topic, "declare a topic", Done, NewTopic),
        ("GET", "/topics", queue.list_topics, "all topics", Topics, None),
        ("POST", "/consumer/register", queue.register_consumer, "get a consumer id", Consumer, Of),
        (
            "POST",
            "/producer/register",
            queue.register_producer,
            "get a producer id; a missing topic is declared",
            Producer,
            Of,
        ),
        ("POST", "/producer/produce", queue.produce, "store a message", Done, Produce),
        (
            "GET",
            "/consumer/consume",
            queue.consume,
            "consume the next message; 500 if the consumer has read all messages",
            Taken,
            None,
        ),
        ("GET", "/size", queue.size, "count the messages a consumer has not read", Size, None),
    ):
        facts = Facts(
            summary,
            gives,
            takes=takes,
            needs_body=takes is not None,
            query=ASKS if path in ("/consumer/consume", "/size") else (),
            errors=(500,),
            fails_as=Failure,
        )
        changes = path == "/consumer/consume"  # the next message is taken out
        door.router.add(
            Route(
                method,
                path,
                handler,
                fail=failure_of,
                facts=facts,
                changes=changes,
                needs=Needs.JUDGED,
                topic_of=lambda request: topic_name(read_fields(request), "topic"),
            )
        )


class QueueDoor:
    """The seven endpoints."""

    def __init__(self, engine: Engine, submissions: Submissions, room: Room) -> None:
        self._engine = engine
        self._room = room
        self._submissions = submissions

    async def create_topic(self, request: Request) -> Response:
        fields = read_fields(request)
        keys = [key for key in ("topic_name", "name", "topic") if key in fields]
        name = topic_name(fields, keys[0] if keys else "topic_name")
        if any(fields[key] != name for key in keys):
            said = ", ".join(f"{key} {quoted(str(fields[key]))}" for key in keys)
            raise HttpError(
                400, f"the request names different topics ({said}): give the topic once"
            )
        engine = self._engine
        check_manage(request.principal, name)
        settings, owner = topic_settings(engine.settings, {}), request.principal.owner
        await engine.topics.create(name, settings, exist_ok=False, owner=owner)
        return SUCCESS

    def list_topics(self, request: Request) -> Response:
        everything = [topic.declared for topic in self._engine.topics.declared()]
        topics = [topic for topic in everything if may_see(request.principal, topic)]
        return json_response({"status": "success", "topics": topics})

    async def register_consumer(self, request: Request) -> Response:
        name = topic_name(read_fields(request), "topic")
        check_read(request.principal, name)
        topic = self._engine.topics.get(name)
        owner = request.principal.owner
        consumer_id = await self._engine.queue.register_consumer(topic, owner)
        return json_response({"status": "success", "consumer_id": consumer_id})

    async def register_producer(self, request: Request) -> Response:
        name = topic_name(read_fields(request), "topic")
        engine = self._engine
        if not authorise(request.principal, PUBLISH, name, topic_key(name)):
            raise NotAuthorized(denial(request.principal, PUBLISH, name))
        if not engine.topics.has(name):
            check_manage(request.principal, name)
        settings = topic_settings(engine.settings, {})
        owner = request.principal.owner
        topic = await engine.topics.create(name, settings, exist_ok=True, owner=owner)
        producer_id = await engine.queue.register_producer(topic, owner)
        return json_response({"status": "success", "producer_id": producer_id})

    def produce(self, request: Request) -> None:
        try:
            asked = _produce(request.body)
            is_plain = not request.query_text and len(asked.producer_id) >= ID_DIGITS_MIN
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            is_plain = False
        if not is_plain:
            fields = read_fields(request)
            asked = _Produce(
                topic_name(fields, "topic"), read_id(fields, "producer_id"), text(fields, "message")
            )
        try:
            topic = self._engine.topics.get(asked.topic)
            self._engine.queue.check_producer(topic, asked.producer_id)
        except RefusedError as refused:
            raise publish_refusal(request.principal, asked.topic, refused) from None
        payload = asked.message.encode()
        run = run_of(topic.declared, [payload], KIND_TEXT, asked.producer_id)

        def stored(offset: int, error: Exception | None) -> None:
            request.reply(SUCCESS if error is None else failure_of(error))

        part = topic.part_of(run.name)
        self._submissions.submit(request.principal, part, [run], stored)

    async def consume(self, request: Request) -> Answer:
        topic, consumer_id = self._consumer(request)
        consumers = self._engine.consumers
        gate = Gate(request.principal, topic.key)

        async def consume() -> list[Record]:
            return await consumers.consume(
                topic, consumer_id, 1, None, commit=True, on_gap="skip", gate=gate
            )

        async def measure() -> int:
            selection = Selection(1, READ_BYTES_MAX, gate=gate)
            largest = 0
            for part, consumer in consumers.parts(topic, consumer_id):
                found = await read_records(part, consumer.next_offset, selection)
                largest = max(largest, records_size(found.records))
            return largest

        found, place = await self._room.read(consume, records_size, measure)
        if not found:
            raise RefusedError(
                f"consumer {consumer_id} has read all messages of topic {quoted(topic.declared)}: "
                "ask again when more was produced"
            )
        if place is None:
            return Response(200, message_body(found[0]))
        return self._room.stream(place, message_pieces(found[0]), JSON)

    async def size(self, request: Request) -> Response:
        topic, consumer_id = self._consumer(request)
        for part in topic.parts:
            await part.learn_count()
        size = self._engine.consumers.waiting(topic, consumer_id)
        return json_response({"status": "success", "size": size})

    def _consumer(self, request: Request) -> tuple[Topic, str]:
        fields = read_fields(request)
        name, consumer_id = topic_name(fields, "topic"), read_id(fields, "consumer_id")
        check_read(request.principal, name)
        topic = self._engine.topics.get(name)
        self._engine.queue.check_consumer(topic, consumer_id)
        consumer = self._engine.consumers.get(topic, consumer_id)
        check_owner(request.principal, consumer.owner, f"consumer {consumer_id}")
        return topic, consumer_id


def message_body(record: Record) -> bytes:
    """What was produced: a text, or whatever another door stored."""
    body: dict[str, Any] = {"status": "success"}
    if record.kind == KIND_JSON:
        body["message"] = record.value
    else:
        try:
            body["message"] = record.payload.decode()
        except UnicodeDecodeError:
            body["message"] = record.payload.decode(errors="replace")
            body["message_base64"] = base64.b64encode(record.payload).decode()
    return _encode(body)


def message_pieces(record: Record) -> Iterator[bytes]:
    """The same, piece by piece."""
    payload = record.payload
    yield b'{"status":"success","message":'
    if record.kind == KIND_JSON:
        yield from cut(payload)
    else:
        yield b'"'
        yield from text_pieces(payload, "replace")
        yield b'"'
        if not is_text(payload):
            yield b',"message_base64":"'
            yield from base64_pieces(payload)
            yield b'"'
    yield b"}"


# Reading fields


def read_fields(request: Request) -> dict[str, Any]:
    """Body and query string together; HttpError 400 where they disagree."""
    fields: dict[str, Any] = {}
    if request.body:
        try:
            check_values(request.body)
            fields = msgspec.json.decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            raise HttpError(400, f"the body is not JSON: {wrong}") from None
        if not isinstance(fields, dict):
            raise HttpError(400, f"the body is {_json_kind(fields)}: send a JSON object")
    for key, value in request.query.items():
        if key in fields and str(fields[key]) != value:
            raise HttpError(
                400,
                f"field {key!r} is {quoted(str(fields[key]))} in the body and {quoted(value)} in "
                "the query string: give it once",
            )
        fields.setdefault(key, value)
    return fields


def text(fields: dict[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        if key not in fields:
            raise HttpError(
                400, f"field {key!r} is missing: put it into the body or the query string"
            )
        shown = _encode(value).decode()
        shown = shown if len(shown) <= SHOWN_CHARS_MAX else shown[:SHOWN_CHARS_MAX] + "…"
        raise HttpError(
            400, f"field {key!r} is {_json_kind(value)}, {shown}: it must be a string, in quotes"
        )
    return value


def _json_kind(value: Any) -> str:
    """What JSON calls it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true or false"
    kinds = ((str, "a text"), (int | float, "a number"), (list, "a list"), (dict, "an object"))
    return next(told for kind, told in kinds if isinstance(value, kind))


def topic_name(fields: dict[str, Any], key: str) -> str:
    return check_topic(text(fields, key))


def read_id(fields: dict[str, Any], key: str) -> str:
    """An id; where it was taken for a number, the zeros in front are put back."""
    value = fields.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    else:
        value = text(fields, key)
    return value.rjust(ID_DIGITS_MIN, "0") if value.isdigit() else value


def failure_of(error: Exception) -> Response:
    """400 for what is wrong in the request, 403 and 429 as /v1 says them, 500 for all else."""
    response = problem_of(error)
    if isinstance(error, HttpError):
        status = error.status
    elif isinstance(error, InvalidTopic | TooLarge):
        status = 400
    else:
        status = status_of(error) if isinstance(error, NotAuthorized | QuotaExceeded) else 500
    told = (
        str(error)
        if isinstance(error, PenstockError)
        else "internal server error; see the server log"
    )
    return Response(
        status, _encode({"status": "failure", "message": told}), headers=response.headers
    )
