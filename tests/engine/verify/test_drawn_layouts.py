"""Some drawn layouts, which together have nearly all that runs in every mode."""

from __future__ import annotations

import pytest

from mimokit.experiment import verify
from tests.covering_runs import DRAWN, GRAPHS
from tests.invariance import STEPS, assert_within_its_noise
from tests.layouts_drawn import numbered_config, numbered_graph
from tests.test_whole_runs import what_runs
from tests.whole_runs import in_precision, parallel_fields

IN_FP8 = 286, 649
"""Those whose models are computed in fp8 as well."""

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
    drawn = {row for number in DRAWN for row in parallel_fields(numbered_config(number))}
    has = {(mode, field) for mode, _, field in drawn}
    assert {(mode, field) for mode, _, field in what_runs()} - has == LEFT_OUT


@pytest.mark.parametrize("number", DRAWN)
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
