"""Are Spark's Python processes cheap to use again, and left as they were otherwise?"""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import gc
from penstock.pipeline.settling import settle
class Loop:
    def __init__(self):
        self.me = self
        self.big = bytearray(10)
kept = Loop()
settle()
frozen = gc.get_freeze_count()
settle()
print(frozen > 1_000, frozen == gc.get_freeze_count(), len(gc.get_objects()) < 1_000)
import weakref
later = Loop()
seen = weakref.ref(later)
del later
gc.collect()
print(seen() is None, gc.isenabled())
"""


def test_what_is_loaded_is_skipped_once_and_later_garbage_is_collected() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", _CODE], capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines() == ["True True True", "True True"]
