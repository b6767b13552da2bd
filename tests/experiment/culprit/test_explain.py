"""`explain` names the first tensor that a layout computes wrongly, and what it is instead."""

from __future__ import annotations

import pytest

from mimokit.experiment import explain
from tests.experiment.culprit.faults import FAULTS, STEPS, fan_in, parts, reference_of
from tests.layouts import digits_config

QUICK = ("the same in feed-forward layers alone", "gradients are not reduced")
"""`python -m tests.benchmarks.culprit` plants all of the list."""


def test_a_right_layout_has_no_culprit_and_planted_ones_are_named(cluster):
    config = fan_in()
    right = explain(cluster, config, steps=STEPS, reference=reference_of(cluster, config))
    assert right.passed, right.verdict
    assert right.not_compared == ()
    assert len(right.compared) > 200
    for fault in (fault for fault in FAULTS if fault.name in QUICK):
        found = fault.explained(cluster)
        assert not fault.wrong(found), f"{fault.name}: {fault.wrong(found)}"
        assert found.is_deterministic
        assert len(str(found).splitlines()) <= 20
        assert str(found).splitlines()[-1].strip()


def test_layouts_of_different_models_are_not_compared(cluster):
    other = digits_config((1, 1), (1, 1), seed=7)
    with pytest.raises(ValueError, match=r"do not compute the same .* differ in runtime\.seed"):
        explain(cluster, parts(), against=other)
