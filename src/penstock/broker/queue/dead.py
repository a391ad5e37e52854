"""Dead letters: records that no reader of a group could handle, and what they were before.

A dead letter lies in the topic `<topic>.dead` under the name `<topic>.dead/<original name>`. Its
headers are those of the original record, then what happened to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from penstock.core.delivery.run import Run, run_of
from penstock.core.naming.names import DEAD_SUFFIX, check_name, topic_key
from penstock.model.errors import InvalidName
from penstock.model.limits import NAME_BYTES_MAX, NAME_LEVELS_MAX, TOPIC_CHARS_MAX
from penstock.model.record import Record

_FACTS: Final = tuple(
    f"penstock.dead.{fact}" for fact in ("reason", "topic", "name", "offset", "group", "deliveries")
)
_PARTITION: Final = "penstock.dead.partition"  # before the others, where a topic has several


def dead_topic(topic: str) -> str:
    """Where records of a topic go that nobody can handle; a long name is cut and told apart."""
    if len(topic) + len(DEAD_SUFFIX) <= TOPIC_CHARS_MAX:
        return topic + DEAD_SUFFIX
    ending = f"~{blake2b(topic_key(topic).encode(), digest_size=8).hexdigest()}{DEAD_SUFFIX}"
    return topic[: TOPIC_CHARS_MAX - len(ending)] + ending


def dead_name(dead: str, name: str) -> str:
    """The name of a dead letter: below its topic's, so who reads the original name is not told.

    What would be longer than a name may be is cut; a header has all of the original name.
    """
    levels = f"{dead}/{name}".split("/", NAME_LEVELS_MAX)[:NAME_LEVELS_MAX]
    return "/".join(levels).encode()[:NAME_BYTES_MAX].decode(errors="ignore")


@dataclass(frozen=True, slots=True)
class Fate:
    """What happened to a record that nobody could handle."""

    topic: str
    group: str
    deliveries: int
    reason: str
    has_partitions: bool = False


def dead_letter(record: Record, dead: str, fate: Fate) -> Run:
    """A record as it is stored in the topic `dead`."""
    place = ((_PARTITION, str(record.partition)),) if fate.has_partitions else ()
    offset, deliveries = str(record.offset), str(fate.deliveries)
    facts = (fate.reason, fate.topic, record.name, offset, fate.group, deliveries)
    headers = (*record.headers, *place, *zip(_FACTS, facts, strict=True))
    name = dead_name(dead, record.name)
    return run_of(name, [record.payload], record.kind, record.publisher, headers, qos=record.qos)


@dataclass(frozen=True, slots=True)
class Letter:
    """Whose dead letter a record is, and what it was."""

    topic: str
    group: str
    original: Run


def read_letter(record: Record) -> Letter | None:
    """None if it is no dead letter: others may publish to the topic, too."""
    own, facts = record.headers[: -len(_FACTS)], record.headers[-len(_FACTS) :]
    if tuple(key for key, _ in facts) != _FACTS:
        return None
    if own and own[-1][0] == _PARTITION:
        own = own[:-1]
    _, topic, name, _, group, _ = (value for _, value in facts)
    try:
        check_name(name)
    except InvalidName:
        return None
    return Letter(
        topic,
        group,
        run_of(name, [record.payload], record.kind, record.publisher, own, qos=record.qos),
    )
