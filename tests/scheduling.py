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
