"""What makes Spark's Python processes cheap to use again.

Spark keeps them for the next task or plan, and has each collect garbage in between, over all that
it ever loaded. That takes longer than planning a query, and as long as a small task.
"""

from __future__ import annotations

import gc


def settle() -> None:
    """Let the collector skip what this process has loaded by now; the first call counts."""
    if gc.get_freeze_count() == 0:
        gc.freeze()
