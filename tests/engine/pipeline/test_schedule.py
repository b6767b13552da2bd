"""The 1F1B schedule, forward alone and whole."""

from __future__ import annotations

import mimokit
from tests.layouts_apart import apart_config


def _call(plan, config):
    """Return (loss, tokens, largest gradient) of the forward alone, then of the whole step."""
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.pipeline.executor import forward_backward_steps, forward_steps
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.loop import prepared

    found = []
    for steps in (forward_steps, forward_backward_steps):
        with prepared(plan, config, default_data) as state:
            (result,) = exhaust(steps(state.iterator, state.model))
            (module,) = state.model.modules().values()
            largest = max(float(p.main_grad.abs().max()) for p in module.parameters())
            found.append((result.loss_sum, result.num_tokens, largest))
    return found


def test_forward_alone_gives_the_same_loss_and_no_gradients(cluster):
    config = apart_config((1, 1, 1), (1, 2, 1), 2)
    plan = mimokit.plan(config)
    ranks = cluster.run(_call, plan, config, world_size=3)
    for forward, whole in ranks:
        assert forward[:2] == whole[:2]
        assert forward[2] == 0.0
        assert whole[2] > 0.0
    assert [whole[1] > 0 for _, whole in ranks] == [False, False, True]
