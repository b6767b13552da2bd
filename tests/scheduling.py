"""Which tests run in one worker of `pytest --numprocesses 2`, and which start first."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

ROOT = Path(__file__).parents[1]
TAKES_THE_CLUSTER = re.compile(r"def \w+\([^)]*\b(shared_)?cluster\b")
"""A function with the fixture `cluster` or `shared_cluster` among its parameters."""
ORACLES = tuple(f"tests/engine/{room}/" for room in ("verify", "pipeline", "colocated", "models"))
"""What is compared with the same oracles, each of which a worker computes once."""
LONGEST_FIRST = (
    "training",
    "experiment",
    "browser",
    "cluster",
    "tests/notebooks/test_first_light.py",
    "tests/cluster/test_safe_path.py",
    "tests/widgets/test_execute.py",
    "tests/widgets/test_planner_search.py",
    "tests/layout_search/test_oracle.py",
    "tests/notebooks/test_plan_a_layout.py",
    "tests/charts/test_charts.py",
    "tests/layout_search/test_answers.py",
    "tests/charts/test_run_charts.py",
    "tests/layout_search/test_readers_agree.py",
    "tests/interop/test_lossless.py",
)
"""Groups of more than about 8 seconds, by their seconds; all others fill what is left."""


class GroupScheduling(LoadScopeScheduling):
    """Groups go to whichever worker is free, in the order of `order`."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # which would order by the number of tests

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.split("::")[0])

    def remove_node(self, node: WorkerController) -> str | None:
        """Give what a worker that was killed has not run to the others; return what it ran.

        The base class gives them groups that are done, too, and what killed the worker: a worker
        waits forever after a group of which it has nothing to report, and one more is killed.
        """
        groups = self.assigned_work.pop(node)
        left = [test for tests in groups.values() for test, done in tests.items() if not done]
        for group, tests in groups.items():
            if rest := dict.fromkeys((test for test in tests if test in left[1:]), False):
                self.workqueue[group] = rest
        for other in self.assigned_work:
            self._reschedule(other)
        return left[0] if left else None

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker groups until one test follows another: it runs none before."""
        if node.shutting_down or node not in self.registered_collections:
            return  # one that replaces another asks when it has imported the tests
        while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        super()._reschedule(node)


@functools.cache
def group_of(file: str) -> str:
    """Return the group of a test file.

    One group for the browser and three for files that use the shared cluster; else the file. One
    group of the latter would take longer than all others together, so that a worker would wait;
    whoever takes the second starts a second cluster, which takes some seconds.
    """
    if file.startswith("tests/browser/"):
        return "browser"
    if not TAKES_THE_CLUSTER.search((ROOT / file).read_text()):
        return file
    if file.startswith("tests/experiment/"):
        return "experiment"
    return "cluster" if file.startswith(ORACLES) else "training"


def order(file: str) -> int:
    """Return the place of a file's group; groups of one place keep their order."""
    group = group_of(file)
    return LONGEST_FIRST.index(group) if group in LONGEST_FIRST else len(LONGEST_FIRST)
