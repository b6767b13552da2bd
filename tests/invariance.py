"""What every layout is held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mimokit.config import ExperimentConfig

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster
    from mimokit.experiment import Oracle, VerificationReport

TOLERANCE = 1e-5
STEPS = 2
"""Enough to see a wrong gradient, and the weights that follow from it."""
MOST_NOISE_OF = {"bf16": (0.05, 0.05), "fp16": (0.05, 0.05), "fp8": (0.2, 0.3)}
"""The noise of one process in a precision, of gradients: in the first step, and in all.

In later ones weights differ as well; with windows in fp8 it is 0.22 with the kernels of AVX2.
"""

_oracles: list[Oracle] = []


def oracle_of(cluster: EngineCluster, config: ExperimentConfig, steps: int = STEPS) -> Oracle:
    """Return the oracle of a layout on the default data, computed once for all its layouts."""
    from mimokit.experiment import compute_oracle
    from mimokit.experiment.prepare import finalized_copy
    from mimokit.experiment.reference import for_verification, single_rank

    alone = single_rank(for_verification(finalized_copy(config)))  # `is_for` makes it for each
    alike = (one for one in _oracles if one.config == alone and one.is_for(config))
    found = next((one for one in alike if len(one.steps) >= steps), None)
    if found is None:
        found = compute_oracle(cluster, config, steps=steps)
        gradients = [one for own in found.steps[0].gradients.values() for one in own.values()]
        assert any(gradient.any() for gradient in gradients), "one process learns"
        _oracles.append(found)
    return found


def assert_within_its_noise(
    cluster: EngineCluster, config: ExperimentConfig, steps: int = STEPS
) -> VerificationReport:
    """Train a layout in fewer bits than fp32, which one process in as few bits judges."""
    from mimokit.experiment import verify

    report = verify(cluster, config, steps=steps, oracle=oracle_of(cluster, config, steps))
    assert len(report.losses) == steps
    assert set(report.gradient_differences[0]) == set(config.model.module_parallelisms)
    assert report.yardstick is not None
    assert report.yardstick.precision == config.runtime.precision
    most_at_first, most = MOST_NOISE_OF[report.yardstick.precision]
    first, last = (report.yardstick.steps[step].gradients for step in (0, -1))
    assert 1e-4 < first < most_at_first, "noise of fewer bits, and no more"
    assert last < most
    assert report.max_gradient_difference > 100 * TOLERANCE, "it does compute in fewer bits"
    assert report.passed, report.verdict
    return report


def assert_computes_the_same(
    cluster: EngineCluster, config: ExperimentConfig, steps: int = STEPS
) -> VerificationReport:
    """Train a layout on real digits; it must compute what one process does, which learns."""
    from mimokit.experiment import verify

    report = verify(cluster, config, steps=steps, oracle=oracle_of(cluster, config, steps))
    assert len(report.losses) == steps
    assert report.data.startswith("digits")
    assert set(report.gradient_differences[0]) == set(config.model.module_parallelisms)
    assert set(report.weight_differences[0]) == set(config.model.module_parallelisms)
    assert report.max_loss_difference <= TOLERANCE
    assert report.max_gradient_difference <= TOLERANCE
    assert report.max_weight_difference <= TOLERANCE
    assert report.passed
    return report
