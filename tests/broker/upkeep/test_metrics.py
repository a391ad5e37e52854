"""What is counted: are the names there before anything happened?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock
from penstock.broker.figures.gauges import measure_process
from penstock.broker.figures.metrics import DROPS, REFUSALS, Metrics
from tests.doors.hosted import Hosted

OPERATIONS = Path(__file__).parents[3] / "docs" / "OPERATIONS.md"


def test_every_reason_is_exported_from_the_start() -> None:
    values = Metrics().snapshot()
    assert all(values[f'penstock_dropped_total{{reason="{reason}"}}'] == 0 for reason in DROPS)
    assert all(values[f'penstock_refused_total{{reason="{reason}"}}'] == 0 for reason in REFUSALS)


@pytest.mark.parametrize(("counter", "known"), [("dropped", DROPS), ("refused", REFUSALS)])
def test_nothing_is_counted_for_a_reason_that_is_not_exported(
    counter: str, known: tuple[str, ...]
) -> None:
    sources = Path(penstock.__file__).parent.rglob("*.py")
    used = {
        reason
        for source in sources
        for reason in re.findall(counter + r'\["(\w+)"\] \+=', source.read_text())
    }
    assert used and used <= set(known)


def test_every_reason_is_explained_to_operators() -> None:
    text = OPERATIONS.read_text()
    for reason in (*DROPS, *REFUSALS):
        assert f"| `{reason}` |" in text


def test_every_cache_is_exported_and_explained_to_operators(tmp_path: Path) -> None:
    with Hosted(tmp_path / "data") as broker:
        exported = broker.call(lambda: measure_process(broker.exchange.engine))
        exported |= broker.call(broker.exchange.engine.counters)
    found = [re.fullmatch(r'penstock_cache_bytes{cache="(\w+)"}', name) for name in exported]
    caches = {one[1] for one in found if one}
    assert caches == {"chunks", "decoded", "retained", "routes", "stream_lines", "tails"}
    text = OPERATIONS.read_text()
    assert "`penstock_cache_bytes{cache=…}`" in text
    assert all(f"| `{cache}` |" in text for cache in caches)
