"""Mistakes that a caller can make, each as a call on anything with the names of Broker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any, Final

Act = Callable[[Any], Any]

LONG: Final = "x" * 256
HUGE: Final = 1 << 70
SURROGATE: Final = "a\ud800"
DEEP: Any = []
for _ in range(5_000):
    DEEP = [DEEP]

BAD_TOPICS: Final[list[Any]] = [
    *("nosuch", "", "a/b", "a+", "#", "$SYS", ".", "..", LONG, "a\n", "a\x85", SURROGATE),
    *(5, None, True, 1.5, b"t", ["t"]),
]
BAD_CONSUMERS: Final[list[Any]] = ["nobody", "", LONG, "a\n", SURROGATE, 5, None, b"c"]
BAD_POSITIONS: Final[list[Any]] = [
    *(
        "",
        "tomorrow-ish",
        "99",
        "-5",
        "24h",
        "Latest",
        "2026-01-02T03:04:05",
        "2026-13-40T03:04:05Z",
    ),
    *("2026-01-02", "9" * 30, "9" * 5_000, " 1", "1.5", "²", "2026-01-02T03:04:60Z"),
    *(99, -1, HUGE, 1.5, True, None, b"1", [1], date(2026, 1, 2), datetime(2026, 1, 2)),
    *(float("nan"), object(), SURROGATE),
]
BAD_WHERES: Final[list[Any]] = [
    *("", "((", "payload ==", "payload.n >", "nosuch = 1", "payload LIKE 5", "'open", "1 = 1; x"),
    *("payload = 1 " * 1_000, "(" * 100 + "1=1" + ")" * 100, "payload = \ud800", "DROP TABLE x"),
    *(5, b"payload = 1", True),
]
BAD_FILTERS: Final[list[Any]] = [
    *("", "a/#/b", "a+/b", "#a", "a\0", SURROGATE, "a/" * 200, "x" * 70_000, 5, b"a"),
]
BAD_LIMITS: Final[list[Any]] = [0, -1, "3", 1.5, True, 2.0, b"1"]
BAD_SETTINGS: Final[list[dict[str, Any]]] = [
    {"durability": "none"},
    {"durability": 5},
    {"durability": None},
    {"retention_age": -1},
    {"retention_age": 0},
    {"retention_age": "soon"},
    {"retention_age": True},
    {"retention_age": []},
    {"retention_age": float("inf")},
    {"retention_age": float("nan")},
    {"retention_age": timedelta(seconds=-1)},
    {"retention_bytes": -1},
    {"retention_bytes": "lots"},
    {"retention_bytes": 1.5},
    {"retention_bytes": HUGE},
    {"retention_bytes": {}},
    {"segment_bytes": 5},
    {"segment_bytes": "x"},
    {"segment_age": -1},
    {"colour": "red"},
    {"retention": 5},
    {"durability": object()},
    {"payload_bytes_max": 5},
]
BAD_NAMES: Final[list[Any]] = ["", "a/#", "a+", "a\0", SURROGATE, "x" * 70_000, "a/" * 200, 5, b"a"]
BAD_HEADERS: Final[list[Any]] = [
    {"a": 5},
    {5: "a"},
    {"": "a"},
    {"a": SURROGATE},
    {"a": "x" * 70_000},
    [("a",)],
    [5],
    5,
    "ab",
]
BAD_MESSAGES: Final[list[Any]] = [
    *(object(), float("nan"), {"deep": [float("inf")]}, SURROGATE, {1: {2: object()}}),
    *(bytes(17 << 20), "x" * (17 << 20), {"a": SURROGATE}, DEEP, lambda: 1),
]


def shown(value: Any) -> str:
    text = "deep list" if value is DEEP else ascii(value)
    if "object at" in text or "lambda" in text:
        text = type(value).__name__
    return text if len(text) <= 40 else f"{text[:30]}… ({len(text)})"


def calls() -> dict[str, Act]:
    """Every mistake with its name; topic `t` has two records, topic `u` none, `c` consumes `t`."""
    found: dict[str, Act] = {}

    def add(name: str, values: list[Any], act: Callable[[Any, Any], Any]) -> None:
        for value in values:
            found[f"{name}({shown(value)})"] = lambda broker, value=value: act(broker, value)

    known = [topic for topic in BAD_TOPICS if topic != "nosuch"]
    add("create_topic", ["t", "T", *known], lambda b, v: b.create_topic(v))
    add("create_topic", BAD_SETTINGS, lambda b, v: b.create_topic("new", **v))
    add("alter_topic", BAD_TOPICS, lambda b, v: b.alter_topic(v, durability="os"))
    add("alter_topic", BAD_SETTINGS, lambda b, v: b.alter_topic("t", **v))
    add("delete_topic", BAD_TOPICS, lambda b, v: b.delete_topic(v))
    add("erase in", BAD_TOPICS, lambda b, v: b.erase("t/#", v))
    add("erase", BAD_FILTERS, lambda b, v: b.erase(v, "t"))
    add("size", BAD_TOPICS, lambda b, v: b.size(v))
    add("size of", BAD_CONSUMERS[:-2], lambda b, v: b.size("t", v))
    add("size in", BAD_TOPICS, lambda b, v: b.size(v, "c"))

    add("bind filter", BAD_FILTERS, lambda b, v: b.bind(v, "t"))
    add("bind to", BAD_TOPICS, lambda b, v: b.bind("a/#", v))
    add("bind elsewhere", ["bound/#"], lambda b, v: b.bind(v, "u"))
    add("unbind", ["never/bound", *BAD_FILTERS], lambda b, v: b.unbind(v))

    add("publish to", BAD_TOPICS, lambda b, v: b.publish("x", v))
    add("publish name", [*BAD_NAMES, "$SYS/x"], lambda b, v: b.publish("x", "t", name=v))
    add("publish headers", BAD_HEADERS, lambda b, v: b.publish("x", "t", headers=v))
    add("publish", BAD_MESSAGES, lambda b, v: b.publish(v, "t"))
    add("publish_many to", BAD_TOPICS, lambda b, v: b.publish_many(["x"], v))
    add("publish_many nothing to", BAD_TOPICS, lambda b, v: b.publish_many([], v))
    add("publish_many", BAD_MESSAGES, lambda b, v: b.publish_many(["x", v], "t"))
    lists = ["abc", b"abc", {"a": 1}, 5, None]
    add("publish_many of", lists, lambda b, v: b.publish_many(v, "t"))
    add("publish_many name", BAD_NAMES, lambda b, v: b.publish_many(["x", 1], "t", name=v))

    add("subscribe", ["c", *BAD_CONSUMERS[1:]], lambda b, v: b.subscribe(v, "t"))
    add("subscribe to", BAD_TOPICS, lambda b, v: b.subscribe("new", v))
    add("subscribe start", BAD_POSITIONS, lambda b, v: b.subscribe("new", "t", start=v))
    for name in ("unsubscribe", "consume", "commit"):
        add(name, BAD_CONSUMERS, lambda b, v, name=name: getattr(b, name)(v, "t"))
        add(f"{name} in", BAD_TOPICS, lambda b, v, name=name: getattr(b, name)("c", v))
    add("consume limit", BAD_LIMITS, lambda b, v: b.consume("c", "t", limit=v))
    add("consume where", BAD_WHERES, lambda b, v: b.consume("c", "t", where=v))
    add("consume on_gap", ["maybe", 5, None], lambda b, v: b.consume("c", "t", on_gap=v))
    offsets = [99, -1, HUGE, "1", 1.5, True, b"1"]
    add("commit offset", offsets, lambda b, v: b.commit("c", "t", v))
    add("seek", BAD_CONSUMERS, lambda b, v: b.seek(v, "t", "earliest"))
    add("seek in", BAD_TOPICS, lambda b, v: b.seek("c", v, "earliest"))
    add("seek to", BAD_POSITIONS, lambda b, v: b.seek("c", "t", v))

    add("consumers", BAD_TOPICS, lambda b, v: b.consumers(v))
    add("groups", BAD_TOPICS, lambda b, v: b.groups(v))
    for name in ("create_group", "alter_group", "redrive"):
        add(f"{name} in", BAD_TOPICS, lambda b, v, name=name: getattr(b, name)("g", v))
    for name in ("create_group", "redrive"):
        invalid = [one for one in BAD_CONSUMERS if one != "nobody"]
        add(name, invalid, lambda b, v, name=name: getattr(b, name)(v, "t"))
    add("alter_group", BAD_CONSUMERS, lambda b, v: b.alter_group(v, "t"))
    leases = [0, -1, 86_401, "1", True, b"1", float("nan")]
    add("create_group lease_s", leases, lambda b, v: b.create_group("g", "t", lease_s=v))
    counts = [-1, 1.5, "1", True, HUGE]
    add("create_group deliveries", counts, lambda b, v: b.create_group("g", "t", deliveries_max=v))
    add("redrive limit", BAD_LIMITS, lambda b, v: b.redrive("g", "t", limit=v))
    add("redrive where", BAD_WHERES, lambda b, v: b.redrive("g", "t", where=v))
    add("remove_group", BAD_CONSUMERS, lambda b, v: b.remove_group(v, "t"))
    add("remove_group in", BAD_TOPICS, lambda b, v: b.remove_group("g", v))
    for name in ("read", "stream"):
        add(name, BAD_TOPICS, lambda b, v, name=name: getattr(b, name)(v))
        add(f"{name} start", BAD_POSITIONS, lambda b, v, n=name: getattr(b, n)("t", start=v))
        add(f"{name} where", BAD_WHERES, lambda b, v, n=name: getattr(b, n)("t", where=v))
        add(f"{name} names", BAD_FILTERS, lambda b, v, n=name: getattr(b, n)("t", names=v))
    add("read limit", BAD_LIMITS, lambda b, v: b.read("t", limit=v))
    add("stream on_gap", ["maybe", 5, None], lambda b, v: b.stream("t", on_gap=v))
    return found
