"""What all readers have in common, the table of them, and when what they got is right."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from penstock import Record
from tests.matrix.house import END, Got, House, Message, Place

Expected = Callable[[Sequence[Message]], list[Message]]


class Reader(Protocol):
    """Attached to a place before anything is published there."""

    def collect(self) -> list[list[Got]]:
        """Everything up to the end, called once all is stored.

        Each list keeps an order; several of them share the messages.
        """
        ...

    def close(self) -> None: ...


def everything(messages: Sequence[Message]) -> list[Message]:
    return list(messages)


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read; `expected` says which messages of a place, the end among them."""

    key: str
    attach: Callable[[House, Place], Reader]
    expected: Expected = everything
    needs_topic: bool = True  # it can be attached only to a topic that is there
    is_for_bus: bool = False  # only names of the bus

    def check(self, streams: list[list[Got]], messages: Sequence[Message]) -> None:
        """Each message once, as it was published, and in the order of its topic."""
        expected = self.expected(messages)
        at = {one.payload: number for number, one in enumerate(expected)}
        orders = [[at.get(got.payload, got.payload) for got in stream] for stream in streams]
        found = [number for order in orders for number in order]
        assert sorted(map(str, found)) == sorted(map(str, range(len(expected)))), (orders, expected)
        for stream, order in zip(streams, orders, strict=True):
            assert order == sorted(order, key=str), "not in the order of the topic"
            wrong = [got for got in stream if not got.is_of(expected[at[got.payload]])]
            assert not wrong, (wrong, expected)


READERS: Final[dict[str, Reading]] = {}


def got_json(record: Mapping[str, Any]) -> Got:
    """A record as /v1 and commands show it."""
    if "payload_base64" in record:
        payload = base64.b64decode(record["payload_base64"])
    elif isinstance(record["payload"], str):
        payload = record["payload"].encode()
    else:
        payload = json.dumps(record["payload"], separators=(",", ":")).encode()
    return Got(payload, record["name"], record.get("offset"), record.get("qos"))


def got_record(record: Record) -> Got:
    return Got(record.payload, record.name, record.offset, record.qos)


def has_end(got: list[Got]) -> bool:
    return any(one.payload == END for one in got)


class Late:
    """Reads only once everything is stored."""

    def __init__(self, read: Callable[[], list[Got]]) -> None:
        self._read = read

    def collect(self) -> list[list[Got]]:
        return [self._read()]

    def close(self) -> None:
        pass


def add(key: str, attach: Callable[[House, Place], Reader], **more: Any) -> None:
    assert key not in READERS
    READERS[key] = Reading(key, attach, **more)


def late(key: str) -> Callable[[Callable[[House, Place], list[Got]]], None]:
    """Register a function that reads what is stored."""

    def register(read: Callable[[House, Place], list[Got]]) -> None:
        add(key, lambda house, place: Late(partial(read, house, place)), needs_topic=False)

    return register
