"""`python -m bench [name ...]`: run suites, print tables, keep the results in bench/results/."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.engines import NotCompiled, engines
from bench.measure import MISSED, Row, heads, machine_facts, markdown, print_row, text_line
from bench.run import Bench

RESULTS = Path(__file__).resolve().parent / "results"
SUITES = {
    "start": "commands, from start to answer, against a Python that does nothing",
    "log": "publishing, reading and opening a log against bare loops and Parquet",
    "trie": "one name against a thousand and a million subscriptions",
    "where": "a filter expression against a function written by hand",
    "scan": "the MQTT codec alone",
    "access": "ten thousand users with ten rules each",
    "mqtt": "the broker against Mosquitto over loopback",
    "brokers": "storing over MQTT against Mosquitto, NATS, Redis and Kafka; bridges",
    "http": "the HTTP door against Redis, PostgreSQL and NATS, which sync too",
    "postgres": "topics as tables against a bare multi-row INSERT",
    "history": "writing records into a history, and reading them there",
    "cluster": "topics in a real Kafka against other clients of Kafka",
    "spark": "topics in Spark against the same rows in Parquet",
}


def run_suite(name: str, bench: Bench, only: str) -> list[Row]:
    """Measure and print the rows of one suite as they come."""
    measure: Callable[[Bench, str], Iterator[Row]]
    measure = importlib.import_module(f"bench.{name}").measure
    print(f"\n== {name}: {SUITES[name]}")
    print(text_line(heads(one.name for one in bench.engines)))
    rows = []
    started_s = time.monotonic()
    for row in measure(bench, only):
        print_row(row)
        rows.append(row)
    print(f"   ({time.monotonic() - started_s:.0f} s)")
    return rows


def write_results(
    path: Path, facts: dict[str, str], columns: list[str], results: dict[str, list[Row]]
) -> None:
    """The same twice: JSON for programs, Markdown for people."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "facts": facts,
        "suites": {name: [row.to_json() for row in rows] for name, rows in results.items()},
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    lines = [f"- {key}: {value}" for key, value in facts.items()]
    tables = [markdown(f"{name}: {SUITES[name]}", columns, rows) for name, rows in results.items()]
    path.with_suffix(".md").write_text("\n".join([*lines, "", *tables]))


def missed(results: dict[str, list[Row]]) -> list[str]:
    """The required rows that the best engine of this run did not reach, and those that lost."""
    found = []
    for name, rows in results.items():
        for row in rows:
            verdicts = list(row.verdicts().values())
            if row.is_required and verdicts and verdicts[-1].startswith(MISSED):
                found.append(f"{name}: {row.scenario}: {verdicts[-1]}")
            found += [f"{name}: {row.scenario}: {text}" for text in row.losses()]
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"{', '.join(SUITES)}; all")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a glance")
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each contender of a row")
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="TREE",
        help="compare with another compiled checkout, such as the commit before a change",
    )
    parser.add_argument(
        "--rules",
        action="store_true",
        help="compare a broker that has 1,000 rules, ten roles and quotas with one that has none",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name contains TEXT")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results go")
    parser.add_argument("--data", type=Path, default=RESULTS, help="where to put data meanwhile")
    parser.add_argument("--list", action="store_true", help="say what there is")
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 3 if options.quick else 7
    for name in options.names:
        if name not in SUITES:
            parser.error(f"{name!r} is no benchmark: choose from {', '.join(SUITES)}")
    if options.rules and (options.names != ["mqtt"] or options.beside):
        parser.error("--rules belongs to the benchmark mqtt alone, without --beside")
    return options


def main() -> int:
    options = parse()
    if options.list:
        for name, text in SUITES.items():
            print(f"{name:<8} {text}")
        return 0
    now = datetime.now(UTC)
    target = options.json or RESULTS / f"{now:%Y%m%d-%H%M%S}.json"
    options.data.mkdir(parents=True, exist_ok=True)
    facts = {"when": now.isoformat(timespec="seconds"), **machine_facts(options.data)}
    facts["rounds"] = f"{options.rounds}" + (", quick: figures are coarse" if options.quick else "")
    results: dict[str, list[Row]] = {}
    if options.beside:
        facts["before"] = str(options.beside)
    with engines(options.beside, has_rules=options.rules) as found:
        columns = heads(one.name for one in found)
        facts["engines"] = ", ".join(one.name for one in found)
        for key, value in facts.items():
            print(f"{key:<14} {value}")
        bench = Bench(found, options.data, options.quick, options.rounds)
        for name in options.names or SUITES:
            results[name] = run_suite(name, bench, options.only)
            write_results(target, facts, columns, results)
    print(f"\nresults: {target} and {target.with_suffix('.md').name}")
    misses = missed(results)
    for text in misses:
        print(f"● {text}")
    return 1 if misses else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NotCompiled as error:
        sys.exit(f"error: {error}")
