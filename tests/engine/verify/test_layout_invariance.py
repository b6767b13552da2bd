"""Every layout computes what one process computes, and the check of it catches faults."""

from functools import partial

import pytest

from mimokit.experiment import verify
from mimokit.experiment.verification_report import ADAM_EPSILON
from tests import seams
from tests.invariance import STEPS, oracle_of
from tests.layouts import digits_config
from tests.planted import planted, replacing


def test_the_oracle_takes_real_steps(cluster):
    losses = oracle_of(cluster, digits_config((1, 2), (2, 1))).losses
    assert losses[-1] < losses[0] - 0.05


@replacing
def _of_twice_the_scale(original, modules):
    """Plant: all gradients are twice as large, which clipping and Adam hide."""
    count = original(modules)
    for module, _ in modules:
        module.scale_gradients(2.0)
    return count


def test_check_catches_gradients_of_a_wrong_scale_that_are_clipped(cluster):
    config = digits_config((1, 2), (1, 2))
    oracle = oracle_of(cluster, config)
    assert oracle.steps[0].norm > config.runtime.clip_grad
    with planted(cluster, seams.FINALIZE_GRADS, _of_twice_the_scale, 2):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert report.max_weight_difference <= 1e-5, "the weights are right"
    assert report.gradient_differences[0]["images"] == pytest.approx(1, rel=1e-4)
    assert "Most differs the norm of all gradients before clipping" in report.verdict
    assert not report.passed


@replacing
def _encoder_by(factor, original, modules):
    """Plant: the gradients of the encoder are a little more than they are."""
    count = original(modules)
    modules[0][0].scale_gradients(factor)
    return count


def test_large_gradients_are_no_false_alarm_and_hide_no_fault(cluster):
    config = digits_config((2, 1), (2, 1), clip_grad=0.0, seed=2, learning_rate=1e-2)
    config.model.get_architecture("language_module").init_std = 0.2
    oracle = oracle_of(cluster, config)
    report = verify(cluster, config, steps=STEPS, oracle=oracle)
    assert report.passed
    assert report.adam_epsilon > 5 * ADAM_EPSILON
    assert "Gradients have a norm of up to" in report.verdict
    for more, measured in ((1e-3, False), (5e-5, True)):
        with planted(cluster, seams.FINALIZE_GRADS, partial(_encoder_by, 1 + more), 2):
            report = verify(cluster, config, steps=1, oracle=oracle)
        assert report.gradient_differences[0]["images"] == pytest.approx(more, rel=0.05)
        assert not report.passed
        assert bool(report.gradient_rounding) == measured
        assert ("more than rounding explains" in report.verdict) == measured
    assert 0 < report.gradient_rounding[0]["images"] < 1e-5
