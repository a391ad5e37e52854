"""What does matching a name cost when a million filters are there, and what does a filter weigh?

Run `python -m bench trie`. The same names are matched against 1,000 subscriptions and against
1,000,000 that include them, so the same number match: one exact filter, one with `+`, one with
`#`. That ratio has a bar. The other rows say what memory alone costs: names spread over the whole
million find nothing in the processor's caches, and neither does a bare dict of that size. Rounds
alternate and medians of processor time are shown.
"""

from __future__ import annotations

import gc
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from statistics import median

from bench.engines import workers
from bench.measure import Bar, Figure, Row
from bench.run import Bench
from penstock.core.naming.trie import FilterTrie

FEW = 1_000
MANY = 1_000_000
DEVICES_PER_PLANT = 100
NAMES_PER_ROUND = 20_000
ROUNDS = 9
RATIO_MAX = 3.0  # the bar: MANY against FEW, the same names


def name_of(device: int) -> str:
    return f"plant{device // DEVICES_PER_PLANT}/device{device}/temp"


def plus_filter(device: int) -> str:
    return f"+/device{device}/temp"


def hash_filter(device: int) -> str:
    return f"plant{device // DEVICES_PER_PLANT}/device{device}/#"


def plus_and_hash(device: int) -> str:
    return f"plant{device // DEVICES_PER_PLANT}/device{device}/+/#"


KINDS = {"exact": name_of, "+": plus_filter, "#": hash_filter}


def filters_of(count: int) -> list[str]:
    """The first `count` filters of an endless list, all kinds in turn."""
    kinds = list(KINDS.values())
    return [kinds[number % 3](number // 3) for number in range(count)]


def fresh_names(devices: int, seed: int) -> list[str]:
    """New strings each time: a name off the wire has no remembered hash either."""
    choose = random.Random(seed)
    return [name_of(choose.randrange(devices)) for _ in range(NAMES_PER_ROUND)]


def trie_of(filters: list[str]) -> FilterTrie[int]:
    trie: FilterTrie[int] = FilterTrie()
    for value, filter in enumerate(filters):
        trie.add(filter, value)
    return trie


def us_per_call(call: Callable[[str], object], names: list[str]) -> float:
    begin = time.thread_time_ns()
    for name in names:
        call(name)
    return (time.thread_time_ns() - begin) / 1_000 / len(names)


def costs(many_count: int) -> dict[str, float]:
    """Microseconds for one name, median of alternating rounds."""
    gc.disable()  # a collection in the middle of a round is not what is measured
    filters = filters_of(many_count)
    few, many = trie_of(filters[:FEW]), trie_of(filters)
    few_devices, many_devices = FEW // 3, many_count // 3
    for name in fresh_names(few_devices, 0)[:1_000]:
        assert len(few.match(name)) == len(many.match(name)) == 3
    few_dict = {name_of(device): device for device in range(few_devices)}
    many_dict = {name_of(device): device for device in range(many_devices)}
    cases: dict[str, tuple[Callable[[str], object], int]] = {
        "few": (few.match, few_devices),
        "same": (many.match, few_devices),
        "any": (many.match, many_devices),
        "dict few": (few_dict.get, few_devices),
        "dict any": (many_dict.get, many_devices),
    }
    taken: dict[str, list[float]] = {case: [] for case in cases}
    for seed in range(ROUNDS):
        for case, (call, devices) in cases.items():
            taken[case].append(us_per_call(call, fresh_names(devices, seed)))
    return {case: median(values) for case, values in taken.items()}


def weights(many_count: int) -> dict[str, tuple[float, float]]:
    """Bytes per subscription: of the trie itself, and of the filter's text where it is kept."""
    kinds = {**KINDS, "+ then #": plus_and_hash}
    lists = {kind: [make(one) for one in range(many_count // 3)] for kind, make in kinds.items()}
    rows = {}
    for kind, filters in {**lists, "mixed": filters_of(many_count)}.items():
        values = list(range(len(filters)))  # the subscribers exist anyway
        kept = sum(sys.getsizeof(text) for text in filters if "+" not in text and "#" not in text)
        trie: FilterTrie[int] = FilterTrie()
        tracemalloc.start()
        for filter, value in zip(filters, values, strict=True):
            trie.add(filter, value)
        weight, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rows[kind] = (weight / len(filters), kept / len(filters))
    return rows


def changes(many_count: int) -> tuple[float, float]:
    """Microseconds to add one of many pairs, and to remove it again."""
    filters = filters_of(many_count)
    begin = time.thread_time_ns()
    trie = trie_of(filters)
    added = time.thread_time_ns()
    for value, filter in enumerate(filters):
        trie.remove(filter, value)
    removed = time.thread_time_ns()
    assert trie.is_empty
    return (added - begin) / 1_000 / many_count, (removed - added) / 1_000 / many_count


def measure(bench: Bench, only: str) -> Iterator[Row]:
    """Each engine in a worker of its own, one after the other: a million filters are heavy."""
    many = MANY // 10 if bench.is_quick else MANY
    cost: dict[str, dict[str, float]] = {}
    change: dict[str, tuple[float, float]] = {}
    weight: dict[str, dict[str, tuple[float, float]]] = {}
    for engine in bench.engines:
        with workers([engine]) as started:
            worker = started[engine.name]
            cost[engine.name] = worker.call("bench.trie:costs", many)
            change[engine.name] = worker.call("bench.trie:changes", many)
            weight[engine.name] = worker.call("bench.trie:weights", many)

    def against(text: str, above: str, below: str, bar: Bar | None = None) -> Row:
        figures = {name: Figure(one[above], one[above] / one[below]) for name, one in cost.items()}
        last = cost[bench.engines[-1].name]
        return Row(text, "µs", figures, (below, last[below]), bar)

    bar = Bar(RATIO_MAX, at_most=True)
    yield against(f"match against {many:,} subscriptions, the same names", "same", "few", bar)
    yield against(f"match against {many:,}, names all over them (cold)", "any", "few")
    yield against("one lookup in a bare dict of that size (cold)", "dict any", "dict few")
    for at, text in enumerate(("add", "remove")):
        figures = {name: Figure(one[at]) for name, one in change.items()}
        yield Row(f"{text} one of {many:,} subscriptions", "µs", figures)
    for kind, (_, kept) in next(iter(weight.values())).items():
        figures = {name: Figure(one[kind][0]) for name, one in weight.items()}
        yield Row(f"weight of a subscription, {kind} (and {kept:.0f} B of text kept)", "B", figures)
