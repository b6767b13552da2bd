"""A layout computes what one process computes, whatever is done with the samples before."""

import pytest

from benchmarks.over_samples import CASES, MODES, Case, config_of
from mimokit.cluster import EngineCluster
from mimokit.experiment import verify


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.encoder)
def test_no_policy_changes_what_is_learned(cluster: EngineCluster, case: Case, mode: str) -> None:
    """Digits with 0 to 16 scans, and 0 to 8 spoken digits of uneven length."""
    for policy in case.policies:
        config = config_of(case, mode, policy)
        report = verify(cluster, config, case.drawn(case.held_out), steps=1)
        assert report.passed, f"{policy}: {report}"
