"""Messages of the Python API become runs, the form in which the engine stores them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from penstock.broker.engine import RUN_BYTES_MAX, RUN_RECORDS_MAX
from penstock.broker.topic.topics import Topic
from penstock.core.access import FULL, PUBLISH, Principal, authorise, denial
from penstock.core.delivery.run import Run, run_of
from penstock.core.naming.names import check_name
from penstock.model.errors import NotAuthorized
from penstock.model.messages import check_headers, encode_message
from penstock.model.record import DEFAULT_TENANT, HeadersLike

CALLER: Final = Principal(DEFAULT_TENANT, "", FULL)  # the program that opened the directory


def runs_of(
    topic: Topic, name: str | None, messages: Iterable[Any], headers: HeadersLike, retain: bool
) -> list[Run]:
    """Messages of one kind in runs, each small enough to be handed over at once."""
    published_as = topic.declared if name is None else check_name(name)
    if not authorise(CALLER, PUBLISH, published_as, topic.key):
        raise NotAuthorized(denial(CALLER, PUBLISH, published_as))
    checked = check_headers(headers)
    alike: list[tuple[int, list[bytes]]] = []  # kind and payloads
    size = 0
    for payload, kind in map(encode_message, messages):
        size += len(payload)
        is_full = size > RUN_BYTES_MAX or (alike and len(alike[-1][1]) >= RUN_RECORDS_MAX)
        if not alike or alike[-1][0] != kind or is_full:
            alike.append((kind, []))
            size = len(payload)
        alike[-1][1].append(payload)
    return [
        run_of(published_as, payloads, kind, headers=checked, retain=bool(retain))
        for kind, payloads in alike
    ]
