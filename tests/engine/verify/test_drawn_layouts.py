"""A dozen drawn layouts, which together have nearly every field of parallelism in every mode.

`python -m tests.benchmarks.drawn_layouts` verifies two hundred.
"""

from __future__ import annotations

import pytest

from mimokit.experiment import verify
from tests.invariance import FEW_STEPS
from tests.layouts_drawn import numbered_config

DOZEN = (27, 32, 35, 62, 72, 99, 113, 117, 130, 131, 183, 199)


@pytest.mark.parametrize("number", DOZEN)
def test_a_drawn_layout_computes_what_one_process_computes(cluster, number):
    report = verify(cluster, numbered_config(number), steps=FEW_STEPS)
    assert report.passed, report.verdict
