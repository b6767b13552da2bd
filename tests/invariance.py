"""What every layout is held to."""

from __future__ import annotations

from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.experiment import verify
from mimokit.experiment.verification import VerificationReport

TOLERANCE = 1e-5


def assert_computes_the_same(
    cluster: EngineCluster, config: ExperimentConfig
) -> VerificationReport:
    """Train a layout on real digits; it must compute, and learn, what one process does."""
    report = verify(cluster, config)
    assert report.data.startswith("digits")
    assert set(report.weight_differences[0]) == set(config.model.module_parallelisms)
    assert report.max_loss_difference <= TOLERANCE
    assert report.max_gradient_difference <= TOLERANCE
    assert report.max_weight_difference <= TOLERANCE
    assert report.losses[-1] < report.losses[0]
    return report
