"""What is counted: are the names there before anything happened?"""

from __future__ import annotations

import re
from pathlib import Path

import penstock
from penstock.broker.metrics import DROPS, Metrics


def test_every_reason_to_drop_is_exported_from_the_start() -> None:
    values = Metrics().snapshot()
    assert all(values[f'penstock_dropped_total{{reason="{reason}"}}'] == 0 for reason in DROPS)


def test_no_message_is_dropped_for_a_reason_that_is_not_exported() -> None:
    sources = Path(penstock.__file__).parent.rglob("*.py")
    used = {
        reason
        for source in sources
        for reason in re.findall(r'dropped\["(\w+)"\] \+=', source.read_text())
    }
    assert used and used <= set(DROPS)
