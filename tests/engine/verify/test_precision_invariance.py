"""Layouts in fewer bits than fp32 compute what one process does, but for the noise of these."""

from __future__ import annotations

import pytest

from mimokit.experiment import verify
from tests.invariance import assert_within_its_noise, oracle_of
from tests.layouts import digits_config
from tests.planted import planted
from tests.whole_runs import whole_runs


@whole_runs("bf16")
def test_layout_in_bf16_computes_what_one_process_computes(cluster, run):
    report = assert_within_its_noise(cluster, run.make(), run.steps)
    print(run.name, report.verdict)
    assert "bf16 against fp32: at most 1.5 times what one process in bf16 differs" in report.verdict
    found = report.to_json()
    assert found["precision"] == "bf16"
    assert found["yardstick"]["allowed"] == 1.5
    assert found["yardstick"]["gradients"] == report.yardstick.gradients


@whole_runs("fp16")
def test_layout_in_fp16_computes_what_one_process_computes(cluster, run):
    report = assert_within_its_noise(cluster, run.make(), run.steps)
    assert "fp16 against fp32" in report.verdict


def _own_gradients_only(original):
    """Plant: no gradient is summed over replicas."""
    return lambda self, force_all_reduce=False: None


def _half(original):
    """Plant: the gradient of half of the rows does not cross."""

    def gather_rows(gradient, cuts, group):
        whole = original(gradient, cuts, group)
        whole[len(whole) // 2 :] = 0
        return whole

    return gather_rows


@pytest.mark.parametrize(
    ("target", "fault", "sizes"),
    [
        (
            "mimokit.engine.parallel.data_parallel.DistributedDataParallel.finish_grad_sync",
            _own_gradients_only,
            ((1, 2), (1, 2)),
        ),
        ("mimokit.engine.colocated.bridge.gather_rows", _half, ((2, 1), (1, 2))),
        (
            "mimokit.engine.parallel.optimizer.MainGradOptimizer.round_main_weights",
            lambda original: lambda self: None,
            ((1, 2), (1, 2)),
        ),
    ],
)
def test_check_in_bf16_catches_a_fault(cluster, target, fault, sizes):
    config = digits_config(*sizes, precision="bf16")
    oracle = oracle_of(cluster, config)
    with planted(cluster, target, fault, 2):
        report = verify(cluster, config, steps=1, oracle=oracle)
    print(report.verdict)
    assert not report.passed
    assert "does NOT" in report.verdict
