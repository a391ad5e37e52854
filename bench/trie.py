"""What does matching a name cost when a million filters are there, and what does a filter weigh?

Run `python -m bench.trie`. The same names are matched against 1,000 subscriptions and against
1,000,000 that include them, so the same number match: one exact filter, one with `+`, one with
`#`. That ratio has a bar. The other rows say what memory alone costs: names spread over the whole
million find nothing in the processor's caches, and neither does a bare dict of that size. Rounds
alternate and medians of processor time are shown, interpreted and compiled side by side where both
are there.
"""

from __future__ import annotations

import gc
import importlib
import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

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


def engines() -> dict[str, ModuleType]:
    """The trie interpreted, and compiled where that is what Python loads."""
    found = importlib.import_module("penstock.core.trie")
    path = Path(str(found.__file__))
    if not path.name.endswith(tuple(EXTENSION_SUFFIXES)):
        return {"interpreted": found}
    spec = spec_from_file_location("bench_trie_interpreted", path.with_name("trie.py"))
    assert spec is not None and spec.loader is not None
    source = module_from_spec(spec)
    spec.loader.exec_module(source)
    return {"interpreted": source, "compiled": found}


def trie_of(engine: ModuleType, filters: list[str]) -> Any:
    trie = engine.FilterTrie()
    for value, filter in enumerate(filters):
        trie.add(filter, value)
    return trie


def us_per_call(call: Callable[[str], object], names: list[str]) -> float:
    begin = time.thread_time_ns()
    for name in names:
        call(name)
    return (time.thread_time_ns() - begin) / 1_000 / len(names)


def cost_rows(engine: ModuleType) -> dict[str, float]:
    """Microseconds for one name, median of alternating rounds."""
    filters = filters_of(MANY)
    few, many = trie_of(engine, filters[:FEW]), trie_of(engine, filters)
    few_devices, many_devices = FEW // 3, MANY // 3
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


def weight_rows(engine: ModuleType) -> dict[str, tuple[float, float]]:
    """Bytes per subscription: of the trie itself, and of the filter's text where it is kept."""
    kinds = {**KINDS, "+ then #": plus_and_hash}
    lists = {kind: [make(device) for device in range(MANY // 3)] for kind, make in kinds.items()}
    rows = {}
    for kind, filters in {**lists, "mixed": filters_of(MANY)}.items():
        values = list(range(len(filters)))  # the subscribers exist anyway
        kept = sum(sys.getsizeof(text) for text in filters if "+" not in text and "#" not in text)
        trie = engine.FilterTrie()
        tracemalloc.start()
        for filter, value in zip(filters, values, strict=True):
            trie.add(filter, value)
        weight, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rows[kind] = (weight / len(filters), kept / len(filters))
    return rows


def change_rows(engine: ModuleType) -> tuple[float, float]:
    """Microseconds to add one of a million pairs, and to remove it again."""
    filters = filters_of(MANY)
    begin = time.thread_time_ns()
    trie = trie_of(engine, filters)
    added = time.thread_time_ns()
    for value, filter in enumerate(filters):
        trie.remove(filter, value)
    removed = time.thread_time_ns()
    assert trie.is_empty
    return (added - begin) / 1_000 / MANY, (removed - added) / 1_000 / MANY


def line(text: str, cells: list[str]) -> None:
    print(f"  {text:<58}" + "".join(f"{cell:>14}" for cell in cells))


def print_costs(costs: list[dict[str, float]]) -> None:
    def row(text: str, case: str) -> None:
        line(text, [f"{cost[case]:.2f} µs" for cost in costs])

    def ratios(text: str, above: str, below: str) -> list[float]:
        values = [cost[above] / cost[below] for cost in costs]
        line(text, [f"{value:.2f}x" for value in values])
        return values

    row(f"{FEW:,} subscriptions", "few")
    row(f"{MANY:,} subscriptions, the same names", "same")
    bar = ratios(f"    ratio, bar ≤ {RATIO_MAX:g}x", "same", "few")
    line("", ["ok" if value <= RATIO_MAX else "MISSED" for value in bar])
    row(f"{MANY:,} subscriptions, names all over them", "any")
    ratios("    ratio (cold caches)", "any", "few")
    ratios("    the same ratio of one lookup in a bare dict", "dict any", "dict few")


def main() -> None:
    """Print the table."""
    gc.disable()  # a collection in the middle of a round is not what is measured
    found = engines()
    print("One name against many filters (exact, +, # in equal parts; 3 match)")
    line("", list(found))
    print_costs([cost_rows(engine) for engine in found.values()])
    changes = [change_rows(engine) for engine in found.values()]
    line("add a subscription", [f"{add:.2f} µs" for add, _ in changes])
    line("remove a subscription", [f"{remove:.2f} µs" for _, remove in changes])
    weights = [weight_rows(engine) for engine in found.values()]
    for kind in weights[0]:
        cells = [f"{rows[kind][0]:.0f} B" for rows in weights]
        kept = weights[0][kind][1]
        line(f"weight of a subscription, {kind} (and {kept:.0f} B of text kept)", cells)
    if "compiled" not in found:
        print("  (the compiled trie is not built: `make setup` with a C compiler builds it)")


if __name__ == "__main__":
    main()
