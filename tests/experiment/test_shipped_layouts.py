"""The shipped layout of digits that no layout invariance test has, nor a notebook."""

from pathlib import Path

from mimokit.cluster import EngineCluster
from mimokit.config_files import load_experiment_config
from mimokit.experiment import verify
from tests.invariance import STEPS, TOLERANCE

FILE = Path(__file__).parents[2] / "configs/ablations/digits/heterogeneous_pp3_dp1.yaml"


def test_three_stages_behind_one_rank_compute_what_one_process_computes(
    cluster: EngineCluster,
) -> None:
    report = verify(cluster, load_experiment_config(FILE), steps=STEPS, tolerance=TOLERANCE)
    assert report.passed
    assert report.data.startswith("digits")
