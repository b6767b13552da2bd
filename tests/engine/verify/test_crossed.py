"""Models with many features, run in every way in each mode, compute what one process computes."""

from __future__ import annotations

import pytest

from tests.crossed import CROSSED
from tests.invariance import assert_computes_the_same, assert_within_its_noise


@pytest.mark.parametrize("run", CROSSED, ids=[run.name for run in CROSSED])
def test_a_crossed_layout_computes_what_one_process_computes(cluster, run):
    config = run.make()
    exact = config.runtime.precision is None
    check = assert_computes_the_same if exact else assert_within_its_noise
    check(cluster, config, run.steps)
