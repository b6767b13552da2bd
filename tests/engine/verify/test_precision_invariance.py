"""Layouts in fewer bits than fp32 compute what one process does, but for the noise of these."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from mimokit.engine.verify.compare import noise_of
from mimokit.engine.verify.steps import Noise, OracleStep
from mimokit.experiment import VerificationReport, compute_oracle, verify
from mimokit.experiment.yardstick import MOST_REPEATED, Yardstick
from tests import seams
from tests.claims.faults import NOT_REDUCED
from tests.experiment.culprit.faults.fault import scaled
from tests.invariance import STEPS, oracle_of
from tests.layouts import digits_config
from tests.layouts_multimodal import LANGUAGE, multimodal_config
from tests.planted import planted


def _as_on_a_gpu(original):
    """Plant: models are built for a GPU."""
    return False


def test_attention_of_gpus_computes_what_that_of_megatron_does(cluster):
    """Encoders of one size and of any, and the language model, each by fused kernels."""
    shared = {"qwen": (1, 4), "audio": (2, 2), LANGUAGE: (2, 2)}
    config = multimodal_config(shared, "colocated", num_microbatches=2, three_axes=True)
    config.runtime.precision = "bf16"
    for sizes in config.model.module_parallelisms.values():
        sizes.recompute_granularity = "selective"
    with planted(cluster, seams.CPU_ONLY, _as_on_a_gpu, 4):
        oracle = compute_oracle(cluster, config.finalize(), steps=STEPS)
        right = verify(cluster, config, steps=STEPS, oracle=oracle)
        with planted(cluster, seams.ATTENTION, partial(scaled, 0.5), 4):
            wrong = verify(cluster, config, steps=1, oracle=oracle)
    assert right.passed, right.verdict
    assert not wrong.passed


def _step(updates):
    """Return a step that has moved norms of 1 and small weights by as much."""
    moved = {"norm": 2e-5, "weight": 2e-5}
    start = {"norm": np.float32(1.0), "weight": np.float32(0.02)}
    weights = {name: np.full(3, start[name] + updates[name], np.float32) for name in start}
    return OracleStep(1.0, {"one": {}}, {"one": weights}, 1.0, moved={"one": moved})


def test_roundings_of_fp32_weights_are_no_difference_of_fewer_bits():
    right = _step({"norm": 2e-5, "weight": 2e-5})
    rounded = _step({"norm": 2e-5 + 2**-22, "weight": 2e-5})
    assert abs(rounded.weights["one"]["norm"] - right.weights["one"]["norm"]).max() > 1e-7
    (noise,) = noise_of([right], [rounded])
    assert noise.weights == 0
    for name in ("norm", "weight"):
        wrong = _step({"norm": 2e-5, "weight": 2e-5, name: 2.2e-5})
        (noise,) = noise_of([right], [wrong])
        assert noise.weights > 0.05, f"a tenth of the updates of the {name}"


def test_several_processes_allow_what_the_worst_of_them_differs():
    first = Yardstick("bf16", (Noise(loss=1e-2, gradients=1e-2, weights=2e-2),))
    assert first.times_allowed([(1e-2, 1e-2, 2.8e-2)]) < 1
    assert 1 < first.times_allowed([(1e-2, 1e-2, 4e-2)]) < MOST_REPEATED
    assert first.times_allowed([(1e-2, 7e-2, 2e-2)]) > MOST_REPEATED
    others = [[Noise(5e-3, 1.5e-2, 3e-2)], [Noise(1e-3, 5e-3, 0.3)]]
    several = first.of_several(others, processes=2)
    assert several.steps == (Noise(1e-2, 1.5e-2, 8e-2),), (
        "not what a single choice made of the weights"
    )
    assert several.processes == 3
    assert "one process in bf16 differs until that step, which is, in the worst of 3" in (
        several.words()
    )


GROWING = Yardstick.of("bf16", [[Noise(1e-3, 1e-2, 1e-2), Noise(1e-3, 8e-2, 2e-2)]])
"""Of two steps: roundings of the first are in the gradients of the second."""


@pytest.mark.parametrize(
    ("differences", "passes"),
    [
        pytest.param([(1e-3, 1.4e-2, 1.4e-2), (1e-3, 0.11, 2.9e-2)], True, id="as allowed"),
        pytest.param([(1e-3, 1.6e-2, 1e-2), (1e-3, 1.6e-2, 1e-2)], False, id="the first gradient"),
        pytest.param([(1e-3, 1e-2, 1.6e-2), (1e-3, 1e-2, 1.6e-2)], False, id="the first update"),
        pytest.param([(1e-3, 1e-2, 1e-2), (1e-3, 0.13, 2e-2)], False, id="a later gradient"),
        pytest.param([(1e-3, 1e-2, 1e-2), (1e-3, 8e-2, 3.1e-2)], False, id="a later update"),
        pytest.param([(1e-3, 1e-2, 1e-2), (5e-3, 8e-2, 2e-2)], False, id="a loss"),
        pytest.param([(1e-3, math.inf, 1e-2), (1e-3, 8e-2, 2e-2)], False, id="no number"),
    ],
)
def test_each_step_is_judged_by_the_roundings_until_then(differences, passes):
    assert (GROWING.times_allowed(differences) <= 1) == passes


def test_a_later_step_that_says_little_is_named_and_the_first_is_still_judged():
    noisy = Yardstick.of("bf16", [[Noise(1e-3, 1e-2, 1e-2), Noise(1e-3, 0.3, 5e-2)]])
    assert (noisy.proved_steps, GROWING.proved_steps) == (1, 2)
    steps = ({"one": 1.2e-2}, {"one": 0.35})
    report = VerificationReport(
        "name", "data", {"one": "DP1"}, 1e-5, (1.0, 1.0), (1.0, 1.0), steps, steps, {},
        yardstick=noisy,
    )  # fmt: skip
    weights = ({"one": 1.2e-2}, {"one": 6e-2})
    right = replace(report, weight_differences=weights)
    assert right.passed
    assert "After step 2 one process in bf16 differs from fp32 by more than 25%" in right.verdict
    assert not report.passed, "more than even that allows"
    assert not replace(right, gradient_differences=({"one": 1.6e-2}, {"one": 0.35})).passed
    none = Yardstick.of("bf16", [[Noise(1e-3, 0.3, 1e-2), Noise(1e-3, 0.3, 5e-2)]])
    assert not replace(right, yardstick=none).passed
    verdict = replace(right, yardstick=none).verdict
    assert "which says nothing about a layout" in verdict
    assert "the layout is neither proved nor refuted (" in verdict
    assert "NOT compute" not in verdict


def test_a_process_that_happens_to_be_near_fp32_is_not_the_only_yardstick(cluster):
    config = digits_config((1, 2), (1, 2), precision="bf16")
    oracle = oracle_of(cluster, config)
    right = verify(cluster, config, steps=1, oracle=oracle)
    assert right.passed
    assert "at most 1.5 times what one process in bf16 differs until that step" in right.verdict
    stored = right.to_json()
    assert stored["precision"] == "bf16"
    assert stored["yardstick"]["allowed"] == 1.5
    assert stored["yardstick"]["gradients"] == right.yardstick.steps[0].gradients
    assert right.yardstick.processes == 1
    share = right.max_gradient_difference / right.yardstick.limits[0][1] / 2
    lucky = tuple(
        tuple(replace(step, gradients=share * step.gradients) for step in replica)
        for replica in oracle.noise
    )
    oracle = replace(oracle, noise=lucky)
    report = verify(cluster, config, steps=1, oracle=oracle)
    assert report.passed, report.verdict
    assert report.yardstick.processes == 8
    assert not replace(report, yardstick=Yardstick.of("bf16", [own[:1] for own in lucky])).passed
    with planted(cluster, NOT_REDUCED.target, NOT_REDUCED.make, 2):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert not report.passed
