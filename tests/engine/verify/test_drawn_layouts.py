"""Drawn layouts and graphs of modules compute what one process computes."""

import pytest

from mimokit.experiment import verify
from tests.invariance import STEPS, assert_within_its_noise
from tests.layouts_drawn import numbered_config, numbered_graph
from tests.whole_runs import in_precision

LAYOUTS, GRAPHS = range(200), range(60)
IN_FP8 = 286, 649
"""Those whose models are computed in fp8 as well."""


@pytest.mark.parametrize("number", LAYOUTS)
def test_a_drawn_layout_computes_what_one_process_computes(cluster, number):
    report = verify(cluster, numbered_config(number), steps=STEPS)
    assert report.passed, report.verdict


@pytest.mark.parametrize("number", GRAPHS)
def test_a_drawn_graph_computes_what_one_process_computes(cluster, number):
    report = verify(cluster, numbered_graph(number), steps=STEPS)
    assert report.passed, report.verdict


@pytest.mark.parametrize("number", IN_FP8)
def test_a_drawn_layout_in_fp8_is_within_its_noise(cluster, number):
    assert_within_its_noise(cluster, in_precision(numbered_config(number), "fp8"))
