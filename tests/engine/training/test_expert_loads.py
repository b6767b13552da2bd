"""The load of experts in the samples of a run."""

import numpy as np
import pytest

from mimokit.engine.training.expert_loads import with_loads
from mimokit.experiment import train
from mimokit.samples import StepSample, expert_column, experts_of
from tests.evaluations import QUICK
from tests.layouts_experts import SHARED, experts_config
from tests.layouts_multimodal import LANGUAGE
from tests.whole_runs import experts_of_encoders_on_stages


def test_columns_are_means_of_layers_and_the_largest_of_a_layer_stands_beside_them() -> None:
    loads = {LANGUAGE: np.array([[2.0, 0.5], [0.0, 1.5]])}
    row = with_loads(StepSample(3, loss=1.0), loads).row()
    assert experts_of(row) == {LANGUAGE: {n: expert_column(LANGUAGE, n) for n in (0, 1)}}
    assert [row[expert_column(LANGUAGE, number)] for number in (0, 1)] == [1.0, 1.0]
    assert row[f"{LANGUAGE}_busiest_expert"] == 2.0
    assert with_loads(StepSample(3), {"a": np.zeros((0, 4))}) == StepSample(3)


def test_the_load_of_experts_is_that_of_one_process(cluster):
    one = experts_config((1, 1, 1), (1, 1, 1), expert_parallel=1, **SHARED)
    several = experts_config((1, 1, 4), (2, 1, 2), expert_tensor_parallel=2, **SHARED)
    loads = []
    for config in (one, several):
        config.runtime.num_iterations = 1
        steps = train(cluster, config, evaluations=QUICK).result().steps
        columns = experts_of(steps.columns)[LANGUAGE]
        assert sorted(columns) == list(range(4))
        assert (steps[list(columns.values())].nunique() == 1).all(), "alike on all ranks"
        loads.append(steps[list(columns.values())].iloc[0].to_numpy())
    assert loads[0] == pytest.approx(loads[1])
    assert np.mean(loads[0]) == pytest.approx(1.0), "no token is dropped"
    assert np.ptp(loads[0]) > 0.01


def test_the_experts_of_an_encoder_are_as_busy_as_their_mean(cluster):
    config = experts_of_encoders_on_stages()
    config.runtime.num_iterations = 1
    steps = train(cluster, config, evaluations=QUICK).result().steps
    loads = steps[list(experts_of(steps.columns)["qwen"].values())]
    assert loads.mean(axis=None) == pytest.approx(1.0)
    assert np.ptp(loads.to_numpy()) > 0.01
