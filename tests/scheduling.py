"""How `--dist loadgroup` hands tests to workers: as pytest-xdist does, but without searching.

pytest-xdist looks for each test in the list of all tests, and counts all tests that a worker ever
had whenever one ends. With more than ten thousand tests that keeps a core busy for half a minute.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler.loadgroup import LoadGroupScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController


class GroupScheduling(LoadGroupScheduling):
    """Forgets a test when it has ended: what a worker is assigned is what it has still to run."""

    @cached_property
    def _places(self) -> dict[str, int]:
        """Where a test is in the list of all of them, which every worker has."""
        assert self.collection is not None
        return {test: place for place, test in enumerate(self.collection)}

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        test = self.registered_collections[node][item_index]
        unit = self._split_scope(test)
        left = self.assigned_work[node][unit]
        del left[test]
        if not left:
            del self.assigned_work[node][unit]
        self._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        unit, tests = self.workqueue.popitem(last=False)
        self.assigned_work[node][unit] = tests
        node.send_runtest_some([self._places[test] for test in tests])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None
