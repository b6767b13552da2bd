"""A dozen drawn layouts, which together have nearly all that runs in every mode.

`python -m tests.benchmarks.drawn_layouts` verifies two hundred. Once `tests/layouts_drawn.py` draws
otherwise, numbers stand for other layouts: the dozen is then chosen again, for what it covers.
"""

from __future__ import annotations

import pytest

from mimokit.experiment import verify
from tests.invariance import FEW_STEPS
from tests.layouts_drawn import numbered_config
from tests.test_whole_runs import what_runs
from tests.whole_runs import parallel_fields

DOZEN = (239, 310, 432, 649, 696, 732, 843, 948, 1035, 1056, 1156, 1178)
LEFT_OUT = {
    ("homogeneous", "use_megatron_fsdp"),
    ("homogeneous", "account_for_embedding_in_pipeline_split"),
    ("homogeneous", "account_for_loss_in_pipeline_split"),
    ("colocated", "pipeline_order zb-h1"),
    ("heterogeneous", "pipeline_order gpipe"),
    ("heterogeneous", "experts by allgather"),
    *((mode, "attention_dropout") for mode in ("homogeneous", "colocated", "heterogeneous")),
}
"""Mode and field of what whole runs alone have."""


def test_the_dozen_has_nearly_all_that_runs_in_every_mode():
    drawn = {row for number in DOZEN for row in parallel_fields(numbered_config(number))}
    has = {(mode, field) for mode, _, field in drawn}
    assert {(mode, field) for mode, _, field in what_runs()} - has == LEFT_OUT


@pytest.mark.parametrize("number", DOZEN)
def test_a_drawn_layout_computes_what_one_process_computes(cluster, number):
    report = verify(cluster, numbered_config(number), steps=FEW_STEPS)
    assert report.passed, report.verdict
