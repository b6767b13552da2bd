"""Which tests run in one worker of `pytest --numprocesses 2`, since they share something dear."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
TAKES_THE_CLUSTER = re.compile(r"def \w+\([^)]*\b(shared_)?cluster\b")
"""A function with the fixture `cluster` or `shared_cluster` among its parameters."""


class GroupScheduling(LoadScopeScheduling):
    """Groups go to whichever worker is free, the largest first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.split("::")[0])


@functools.cache
def group_of(file: str) -> str:
    """Return the group of a test file.

    One group for all files that use the shared cluster, one for the browser; else the file.
    """
    if file.startswith("tests/browser/"):
        return "browser"
    return "cluster" if TAKES_THE_CLUSTER.search((ROOT / file).read_text()) else file
