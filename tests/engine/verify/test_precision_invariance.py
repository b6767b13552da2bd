"""Layouts in fewer bits than fp32 compute what one process does, but for the noise of these."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from mimokit.engine.verify.compare import Noise, noise_of
from mimokit.engine.verify.oracle import OracleStep
from mimokit.experiment import compute_oracle, verify
from mimokit.experiment.yardstick import Yardstick
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
    first = Yardstick("bf16", loss=1e-2, gradients=2e-2, weights=1e-2)
    assert not first.nearly_allows((1e-2, 2e-2, 1.4e-2))
    assert first.nearly_allows((1e-2, 2e-2, 2e-2))
    assert not first.nearly_allows((1e-2, 2e-2, 7e-2))
    others = [Noise(5e-3, 3e-2, 1.5e-2), Noise(1e-3, 1e-2, 0.3)]
    several = first.of_several(others, processes=2)
    assert (several.loss, several.gradients) == (1e-2, 3e-2)
    assert several.weights == 4e-2, "not what a single choice made of the weights"
    assert several.processes == 3
    assert "one process in bf16 differs, which is, in the worst of 3, loss" in several.words()


def test_a_process_that_happens_to_be_near_fp32_is_not_the_only_yardstick(cluster):
    config = digits_config((1, 2), (1, 2), precision="bf16")
    oracle = oracle_of(cluster, config)
    right = verify(cluster, config, steps=1, oracle=oracle)
    assert right.passed
    assert "bf16 against fp32: at most 1.5 times what one process in bf16 differs" in right.verdict
    stored = right.to_json()
    assert stored["precision"] == "bf16"
    assert stored["yardstick"]["allowed"] == 1.5
    assert stored["yardstick"]["gradients"] == right.yardstick.gradients
    assert right.yardstick.processes == 1
    share = right.max_gradient_difference / right.yardstick.limits[1] / 2
    lucky = tuple(
        tuple(replace(step, gradients=share * step.gradients) for step in replica)
        for replica in oracle.noise
    )
    oracle = replace(oracle, noise=lucky)
    report = verify(cluster, config, steps=1, oracle=oracle)
    assert report.passed, report.verdict
    assert report.yardstick.processes == 4
    assert not replace(report, yardstick=replace(right.yardstick, **_first(lucky))).passed
    with planted(cluster, NOT_REDUCED.target, NOT_REDUCED.make, 2):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert not report.passed


def _first(noise):
    (step, *_), *_ = noise
    return {"gradients": step.gradients}
