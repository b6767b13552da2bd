"""Some drawn layouts, which together have nearly all that runs in every mode.

`python -m tests.benchmarks.drawn_layouts` verifies two hundred. Once `tests/layouts_drawn.py` draws
otherwise, numbers stand for other layouts: these are then chosen again, for what they cover.
"""

from __future__ import annotations

import pytest

from mimokit.experiment import verify
from tests.invariance import STEPS, assert_within_its_noise
from tests.layouts_drawn import numbered_config, numbered_graph
from tests.test_whole_runs import what_runs
from tests.whole_runs import in_precision, parallel_fields

CHOSEN = (
    105, 203, 239, 286, 310, 432, 649, 696, 843, 948, 1035, 1056, 1097, 1178, 1205, 1263,
)  # fmt: skip
IN_FP8 = 286, 649
"""Those whose models are computed in fp8 as well."""

GRAPHS = 3, 6, 7
"""Of those with adapters, several receivers and decoders of items: one of each."""

LEFT_OUT = {
    ("homogeneous", "use_megatron_fsdp"),
    ("homogeneous", "account_for_embedding_in_pipeline_split"),
    ("homogeneous", "account_for_loss_in_pipeline_split"),
    *(
        (mode, field)
        for mode in ("homogeneous", "colocated", "heterogeneous")
        for field in ("attention_dropout", "precision fp8")
    ),
}
"""Mode and field of what whole runs alone have."""


def test_they_have_nearly_all_that_runs_in_every_mode():
    drawn = {row for number in CHOSEN for row in parallel_fields(numbered_config(number))}
    has = {(mode, field) for mode, _, field in drawn}
    assert {(mode, field) for mode, _, field in what_runs()} - has == LEFT_OUT


@pytest.mark.parametrize("number", CHOSEN)
def test_a_drawn_layout_computes_what_one_process_computes(cluster, number):
    report = verify(cluster, numbered_config(number), steps=STEPS)
    assert report.passed, report.verdict


@pytest.mark.parametrize("number", GRAPHS)
def test_a_drawn_graph_computes_what_one_process_computes(cluster, number):
    report = verify(cluster, numbered_graph(number), steps=STEPS)
    assert report.passed, report.verdict


@pytest.mark.parametrize("number", IN_FP8)
def test_a_drawn_layout_in_fp8_is_within_its_noise(cluster, number):
    assert_within_its_noise(cluster, in_precision(lambda: numbered_config(number), "fp8"))
