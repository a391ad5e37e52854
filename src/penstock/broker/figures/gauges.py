"""What a broker holds at this moment, for `/metrics`: measured when asked for, never counted along.

Readers are summed by their kind, so the number of lines does not grow with them. A lag counts the
records between a reader's position and the end of its topic, whether the reader wants them or not.
Sessions of clients that are away are not part of it: their positions are in the catalog.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import nlargest
from pathlib import Path
from typing import Final

from penstock.broker.engine import Engine
from penstock.broker.exchange import Exchange
from penstock.core.engine_kind import engine_kind
from penstock.log.interface import KeptLog
from penstock.model.version import VERSION

_STATM: Final = Path("/proc/self/statm")  # Linux: sizes in pages, the second is what is resident
_DESCRIPTORS: Final = "/proc/self/fd"
TOPICS_MAX: Final = 100  # shown one by one
OTHERS: Final = "(others)"  # the rest of them together

Logs = dict[int, KeptLog]  # by topic id


def resident_bytes() -> int:
    """Memory of this process."""
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()


def measure_process(engine: Engine) -> dict[str, float]:
    """What all tenants share; names as they are exported, with their values."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    memory, descriptors = resident_bytes(), len(os.listdir(_DESCRIPTORS))
    started_s = engine.shared.started_us / 1e6
    return {
        f'penstock_build_info{{version="{VERSION}",engine="{engine_kind()}"}}': 1,
        "penstock_process_start_time_seconds": started_s,
        "penstock_process_resident_bytes": memory,
        "penstock_process_open_fds": descriptors,
        "process_cpu_seconds_total": used.ru_utime + used.ru_stime,
        "process_resident_memory_bytes": memory,
        "process_open_fds": descriptors,
        "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "process_start_time_seconds": started_s,
        **_disk(engine),
        **engine.shared.caches.export(),
    }


def measure(exchange: Exchange) -> dict[str, float]:
    """What a tenant holds; names as they are exported, with their values."""
    engine = exchange.engine
    connected = len(exchange.sessions.connected)
    plain, shared = exchange.sessions.subscription_count, len(exchange.store.shares)
    return {
        **_topics(engine),
        **_histories(engine),
        "penstock_connected_clients": connected,
        'penstock_mqtt_sessions{state="connected"}': connected,
        'penstock_mqtt_sessions{state="away"}': exchange.sessions.away_count,
        'penstock_mqtt_subscriptions{kind="plain"}': plain,
        'penstock_mqtt_subscriptions{kind="shared"}': shared,
        "penstock_retained_messages": len(exchange.store.retained),
        **_lags(exchange),
    }


def _disk(engine: Engine) -> dict[str, float]:
    free, size = engine.shared.space.seen
    values: dict[str, float] = {"penstock_disk_refusing_publishes": bool(engine.upkeep.refusal)}
    if size > 1:  # else the broker is in memory, or its topics are in a database
        values |= {"penstock_disk_free_bytes": free, "penstock_disk_size_bytes": size}
    return values


def _topics(engine: Engine) -> dict[str, float]:
    states = {"available": 0, "fenced": 0, "unavailable": 0}
    records = 0
    for topic in engine.topics.all():
        if not topic.refusal:
            records += topic.log.count_from(0)
        if topic.partition:
            continue  # its topic was counted with its first part
        if any(part.refusal for part in topic.parts):
            states["unavailable"] += 1
        else:
            fenced = any(part.log.fence for part in topic.parts)
            states["fenced" if fenced else "available"] += 1
    values: dict[str, float] = {
        f'penstock_stored_topics{{state="{state}"}}': count for state, count in states.items()
    }
    return values | {"penstock_stored_records": records}


def measure_topics(engine: Engine, may_see: Callable[[str], bool]) -> dict[str, float]:
    """Of the topics that somebody may know of: the largest by name, the others together."""
    records: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for part in engine.topics.working():
        if may_see(part.declared):
            records[part.declared] += part.log.count_from(0)
            sizes[part.declared] += engine.upkeep.topic_bytes.get(part.id, 0)
    shown = nlargest(TOPICS_MAX, records, key=lambda name: (sizes[name], records[name], name))
    values: dict[str, float] = {}
    for metric, counted in (("records", records), ("bytes", sizes)):
        for name in shown:
            values[f'penstock_topic_{metric}{{topic="{_escaped(name)}"}}'] = counted[name]
        if len(shown) < len(records):
            rest = sum(counted.values()) - sum(counted[name] for name in shown)
            values[f'penstock_topic_{metric}{{topic="{OTHERS}"}}'] = rest
    return values


def _escaped(label: str) -> str:
    """The value of a label as the text format writes it; topics have no line breaks."""
    return label.replace("\\", r"\\").replace('"', r"\"")


def _histories(engine: Engine) -> dict[str, float]:
    """Of topics that have one."""
    states = {"ok": 0, "failing": 0}
    records = size = waiting = failures = 0
    for topic in engine.topics.all():
        history = topic.log.history
        if history is None or not topic.log.settings.history:
            continue
        told = history.describe(None)
        states["failing" if told.trouble else "ok"] += 1
        records += told.end_offset - told.first_offset
        size += told.bytes
        waiting += told.waiting_bytes
        failures += history.failures
    values: dict[str, float] = {
        f'penstock_history_topics{{state="{state}"}}': count for state, count in states.items()
    }
    return values | {
        "penstock_history_records": records,
        "penstock_history_bytes": size,
        "penstock_history_waiting_bytes": waiting,
        "penstock_history_failures_total": failures,
    }


def _lags(exchange: Exchange) -> dict[str, float]:
    engine = exchange.engine
    logs: Logs = {topic.id: topic.log for topic in engine.topics.all()}
    kinds = {
        "consumer": engine.consumers.lags(logs),
        "group": engine.groups.lags(logs),
        "session": _behind((one.lags for one in exchange.sessions.connected.values()), logs),
        "feed": _behind((one.lags for one in exchange.feeds), logs),
        "share": _behind((one.lags for one in exchange.store.shares.behind), logs),
    }
    values: dict[str, float] = {}
    for kind, lags in kinds.items():
        values |= {
            f'penstock_lag_records{{reader="{kind}"}}': sum(lags),
            f'penstock_longest_lag_records{{reader="{kind}"}}': max(lags, default=0),
            f'penstock_lagging_readers{{reader="{kind}"}}': sum(1 for lag in lags if lag),
        }
    return values


def _behind(readers: Iterable[dict[int, int]], logs: Logs) -> list[int]:
    """How far each reader is behind, over all topics in which it lags."""
    return [
        sum(logs[topic_id].count_from(at) for topic_id, at in lags.items() if topic_id in logs)
        for lags in readers
        if lags
    ]
