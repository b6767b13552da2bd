"""The 1F1B schedule as one call."""

from __future__ import annotations

import pytest

import mimokit
from mimokit.cluster import RankError
from tests.layouts_apart import apart_config


def _call(plan, config, num_microbatches):
    """Return (loss, tokens, largest gradient) of the forward alone, then of the whole step."""
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.pipeline.schedule import (
        forward_backward_1f1b_with_multimodule_communicator as run,
    )
    from mimokit.engine.training.loop import prepared

    found = []
    for forward_only in (True, False):
        with prepared(plan, config, default_data) as state:
            (result,) = run(state.iterator, state.model, num_microbatches, forward_only)
            ((module, _),) = state.modules
            largest = max(float(p.main_grad.abs().max()) for p in module.parameters())
            found.append((result.loss_sum, result.num_tokens, largest))
    return found


def test_forward_alone_gives_the_same_loss_and_no_gradients(cluster):
    config = apart_config((1, 1, 1), (1, 2, 1), 2)
    plan = mimokit.plan(config)
    ranks = cluster.run(_call, plan, config, 2, world_size=3)
    for forward, whole in ranks:
        assert forward[:2] == whole[:2]
        assert forward[2] == 0.0
        assert whole[2] > 0.0
    assert [whole[1] > 0 for _, whole in ranks] == [False, False, True]
    with pytest.raises(RankError, match="The plan is for 2 micro-batches, not 3"):
        cluster.run(_call, plan, config, 3, world_size=3)
