"""`penstock topic create|list|info|alter|erase|delete`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.output import (
    UsageError,
    agrees,
    counted,
    human_bytes,
    human_duration,
    show_facts,
    show_json,
    show_table,
    waiting,
    warn,
)
from penstock.cli.remote import (
    AnyBroker,
    add_remote,
    fetch,
    reach_broker,
    read_key,
    served_at,
    tenant_header,
)
from penstock.cli.target import filled_path, open_broker
from penstock.config import environment, storage_chosen
from penstock.core.naming.names import check_topic
from penstock.core.topic_settings import check_topic_setting
from penstock.model.errors import RefusedError
from penstock.model.record import DEFAULT_TENANT, TenantId

if TYPE_CHECKING:
    from penstock.model.record import Erased, HistoryInfo, TopicInfo


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("topic")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")

    create = actions.add_parser("create", help="create a topic")
    create.add_argument("topic", help="name of the topic (not case-sensitive)")
    _add_settings(create)
    create.add_argument(
        "--partitions",
        type=int,
        metavar="N",
        help="number of partitions in Kafka; cannot be changed later (default: [kafka] partitions)",
    )
    create.add_argument("--exist-ok", action="store_true", help="succeed if the topic exists")
    create.set_defaults(run=create_topic)

    listing = actions.add_parser("list", help="list all topics")
    listing.set_defaults(run=list_topics)

    shown = actions.add_parser("info", help="show a topic with its settings and consumers")
    shown.add_argument("topic", help="name of the topic (not case-sensitive)")
    shown.set_defaults(run=show_topic)

    alter = actions.add_parser("alter", help="change the given settings")
    alter.add_argument("topic", help="name of the topic (not case-sensitive)")
    _add_settings(alter)
    alter.set_defaults(run=alter_topic)

    erase = actions.add_parser(
        "erase",
        help="erase the payloads of records for good; their offsets stay",
        description="Erase payload, headers and publisher of all matching records in the log, in "
        "the history and among the retained messages. Offsets, times and names stay. This cannot "
        "be undone.",
    )
    erase.add_argument("topic", help="name of the topic (not case-sensitive)")
    erase.add_argument(
        "--names", metavar="FILTER", required=True, help="names to erase, with + and #"
    )
    erase.add_argument(
        "--before", metavar="TIME", help="only records older than a time or a duration such as -30d"
    )
    erase.add_argument("--dry-run", action="store_true", help="count the records, change nothing")
    erase.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    erase.set_defaults(run=erase_records)

    delete = actions.add_parser("delete", help="delete a topic with all its records")
    delete.add_argument("topic", help="name of the topic (not case-sensitive)")
    delete.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    delete.set_defaults(run=delete_topic)

    for action in (create, listing, shown, alter, erase, delete):
        add_remote(action)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--retention-age", metavar="AGE", help="how long to keep records: 12h, 7d, or unlimited"
    )
    parser.add_argument(
        "--retention-bytes", metavar="SIZE", help="how much to keep: 10 GiB, or unlimited"
    )
    parser.add_argument(
        "--durability",
        choices=["fsync", "os", "replicated"],
        help="what an acknowledgement means: on disk, handed to the operating system, or (only in "
        "Kafka) on all brokers in sync",
    )
    parser.add_argument(
        "--history",
        action=argparse.BooleanOptionalAction,
        help="copy records into an open table before they are removed ([history] url)",
    )
    parser.add_argument(
        "--history-age", metavar="AGE", help="how long to keep them there: 365d, or unlimited"
    )


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    names = ("retention_age", "retention_bytes", "durability", "history", "history_age")
    given = {name: getattr(options, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def create_topic(options: argparse.Namespace) -> None:
    check_topic(options.topic)  # before a data directory is created for it
    settings = _settings(options)
    for key, value in settings.items():
        check_topic_setting(key, value)
    if options.partitions is not None:
        settings["partitions"] = options.partitions
    with reach_broker(options, create=True) as broker:
        broker.create_topic(options.topic, exist_ok=options.exist_ok, **settings)
        _answer(options, broker, options.topic, "created")


def alter_topic(options: argparse.Namespace) -> None:
    settings = _settings(options)
    if not settings:
        raise UsageError(
            "nothing to alter: give --retention-age, --retention-bytes, --durability, --history "
            "or --history-age"
        )
    with reach_broker(options) as broker:
        broker.alter_topic(options.topic, **settings)
        _answer(options, broker, options.topic, "altered")


def _answer(options: argparse.Namespace, broker: AnyBroker, topic: str, what: str) -> None:
    found = broker.topic(topic)
    if options.json:
        show_json(asdict(found))
    else:
        size = found.retention_bytes
        print(
            f"{what} topic {found.topic} (id {found.id}): durability {found.durability}, "
            f"retention {human_duration(found.retention_age)}, "
            f"{'no size limit' if size is None else f'at most {human_bytes(size)}'}"
        )


def list_topics(options: argparse.Namespace) -> None:
    found, told = _all_topics(options)
    topics = sorted(found, key=lambda one: one.topic.casefold())
    if options.json:
        show_json([asdict(one) for one in topics])
    elif not topics:
        print("no topics yet: create one with `penstock topic create NAME`")
    else:
        columns = ["topic", "first", "end", "stored", "durability", "max age", "max size"]
        rows = [
            [
                one.topic,
                one.first_offset,
                one.end_offset,
                human_bytes(one.bytes),
                one.durability,
                human_duration(one.retention_age),
                human_bytes(one.retention_bytes),
            ]
            for one in topics
        ]
        if any(one.trouble for one in topics):
            columns.append("state")
            for row, one in zip(rows, topics, strict=True):
                row.append(_state(one))
        show_table(columns, rows)
    for one in topics:
        if one.trouble and one.trouble not in told:
            warn(one.trouble)


def known_topics(options: argparse.Namespace) -> list[str]:
    """Names of topics, as far as they are known without opening a directory; for completions."""
    if served_at(options.at) is not None:
        found, _ = _all_topics(options)
    elif storage_chosen(environment()) or not Path(options.at).is_dir():
        return []
    else:
        from penstock.app.closed import read_topics

        tenant = TenantId(options.of_tenant or DEFAULT_TENANT)
        found = read_topics(Path(options.at), tenant) or []
    return sorted(one.topic for one in found)


def _all_topics(options: argparse.Namespace) -> tuple[list[TopicInfo], Sequence[str]]:
    """All topics, and what was said about them already; a closed directory stays closed."""
    url = served_at(options.at)
    if url is not None:
        from penstock.client.answer import decode_topics

        return decode_topics(
            fetch(url, read_key(options, url), "GET", "/v1/topics", headers=tenant_header(options))
        ), ()
    path = filled_path(options)
    if not storage_chosen(environment()):
        from penstock.app.closed import read_topics

        found = read_topics(path, TenantId(options.of_tenant or DEFAULT_TENANT))
        if found is not None:
            return found, ()
    with open_broker(options) as broker:
        return broker.topics(), broker.notes


def _state(found: TopicInfo) -> str:
    if not found.is_available:
        return "unavailable"
    return "damaged" if found.trouble else "ok"


def show_topic(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        found = broker.topic(options.topic)
        consumers = broker.consumers(options.topic) if found.is_available else []
    kept = _set_aside(options, found)
    if options.json:
        show_json(
            asdict(found)
            | {
                "consumers": [asdict(one) for one in consumers],
                "set_aside": [str(path) for path in kept],
            }
        )
        return
    facts: list[tuple[str, object]] = [
        ("topic", found.topic),
        ("id", found.id),
        *_offset_facts(found),
        ("stored", human_bytes(found.bytes)),
        ("durability", found.durability),
        ("max age", human_duration(found.retention_age)),
        ("max size", human_bytes(found.retention_bytes)),
        ("epoch", found.epoch),
    ]
    if found.history is not None:
        facts += _history_facts(found.history)
    if found.trouble:
        facts.append(("problem", found.trouble))
    facts += [("set aside", path) for path in kept]
    show_facts(facts)
    if consumers:
        print()
        show_table(
            ["consumer", "next", "waiting"],
            [[one.consumer, one.next_offset, one.waiting] for one in consumers],
        )


def _offset_facts(found: TopicInfo) -> list[tuple[str, object]]:
    if not found.partitions:
        return [("offsets", _shown_range(found.first_offset, found.end_offset))]
    return [
        ("partitions", len(found.partitions)),
        *(
            (f"offsets of {one.partition}", _shown_range(one.first_offset, one.end_offset))
            for one in found.partitions
        ),
    ]


def _shown_range(first: int, end: int) -> str:
    return f"{first} to {end - 1}" if end > first else "none"


def _history_facts(told: HistoryInfo) -> list[tuple[str, object]]:
    first, end = told.first_offset, told.end_offset
    held = f"offsets {first} to {end - 1}" if end > first else "no records"
    facts: list[tuple[str, object]] = [
        ("history", told.url),
        ("in history", f"{held}, {counted(told.files, 'file')}, {human_bytes(told.bytes)}"),
        ("not yet there", human_bytes(told.waiting_bytes)),
        ("history age", human_duration(told.age)),
    ]
    if told.trouble:
        facts.append(("history problem", told.trouble))
    return facts


def _set_aside(options: argparse.Namespace, found: TopicInfo) -> list[Path]:
    """Damaged parts that recovery saved next to the log; empty if the files are elsewhere."""
    from penstock.log.files.disk import RealDisk
    from penstock.log.files.layout import find_logs, log_directory
    from penstock.log.files.recovery import set_aside

    disk, root = RealDisk(), Path(options.at)
    return [
        path
        for identity in find_logs(disk, root)
        if identity.topic_id == found.id
        for path in set_aside(disk, log_directory(root, identity))
    ]


def erase_records(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        asked = partial(broker.erase, options.names, options.topic, before=options.before)
        if not options.dry_run and not options.yes:
            with waiting("counting records"):
                found = asked(dry_run=True)
            if not agrees(f"erase {_counts(found)} of topic {found.topic}? [y/N] "):
                raise RefusedError("not erased: answer y, or give --yes")
        with waiting("counting records" if options.dry_run else "erasing records"):
            erased = asked(dry_run=options.dry_run)
    if options.json:
        show_json(asdict(erased))
    else:
        verb = "would erase" if erased.dry_run else "erased"
        print(f"{verb} {_counts(erased)} of topic {erased.topic}")


def _counts(erased: Erased) -> str:
    return (
        f"{counted(erased.log_records, 'record')} in the log, {erased.history_records:,} in the "
        f"history and {counted(erased.retained, 'retained message')}"
    )


def delete_topic(options: argparse.Namespace) -> None:
    with reach_broker(options) as broker:
        found = broker.topic(options.topic)
        if not options.yes:
            its = counted(found.count, "record")
            if not agrees(f"delete topic {found.topic} and its {its}? [y/N] "):
                raise RefusedError("not deleted: answer y, or give --yes")
        broker.delete_topic(options.topic)
    if options.json:
        show_json({"deleted": found.topic})
    else:
        print(f"deleted topic {found.topic}")
        if found.history is not None and found.history.files:
            print(f"its history stays in {found.history.url}: see `penstock history drop`")
