"""Layouts that cut modules in several ways at once compute what one process computes."""

import pytest

from tests.crossed import CROSSED
from tests.invariance import assert_computes_the_same, assert_within_its_noise
from tests.whole_runs import WHOLE_RUNS

MORE_IS_ASSERTED = {
    "replicas", "overlapped reduction", "a whole LLaVA", "a whole Qwen-VL", "a whole MiMo",
    "modules that start from weights", "an adapter next to frozen modules",
    "a frozen part of an encoder",
}  # fmt: skip
"""What runs of tests of their own prove."""
RUNS = {
    f"{run.proves}: {run.name}": run
    for run in (*WHOLE_RUNS, *CROSSED)
    if run.proves not in MORE_IS_ASSERTED
}


@pytest.mark.parametrize("name", RUNS)
def test_a_layout_computes_what_one_process_computes(cluster, name):
    run = RUNS[name]
    config = run.make()
    exact = config.runtime.precision in (None, "fp32")
    check = assert_computes_the_same if exact else assert_within_its_noise
    report = check(cluster, config, run.steps)
    assert exact or f"{config.runtime.precision} against fp32" in report.verdict
