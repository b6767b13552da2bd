"""The 1F1B schedule, forward alone and whole."""

import pytest

import mimokit
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.rank_steps import state_of


def _call(plan, config):
    """Return (loss, tokens, largest gradient) of the forward alone, then of the whole step."""
    from mimokit.engine.pipeline.steps import forward_backward_steps, forward_steps
    from mimokit.engine.steps import exhaust

    found = []
    for steps in (forward_steps, forward_backward_steps):
        with state_of(plan, config) as state:
            losses = exhaust(steps(state.iterator, state.model))
            (module,) = state.model.modules().values()
            largest = max(float(p.main_grad.abs().max()) for p in module.parameters())
            whole = sum(loss.loss_sum for loss in losses), sum(loss.num_tokens for loss in losses)
            found.append((*whole, largest))
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


def _reducing(plan, config):
    """Return (module, micro-batch) of the backwards in which Megatron may reduce gradients."""
    from mimokit.engine.pipeline.steps import forward_backward_steps
    from mimokit.engine.steps import exhaust

    found = []
    with state_of(plan, config) as state:
        modules = state.model.modules()

        def note(step):
            if step.name == "backward" and modules[step.module].bucket_groups[0].is_last_microbatch:
                found.append((step.module, step.microbatch))

        exhaust(forward_backward_steps(state.iterator, state.model), note)
    return found


@pytest.mark.parametrize(
    "config", [digits_config((1, 2), (2, 1), 3), apart_config((1, 1, 1), (1, 1, 1), 3)]
)
def test_only_the_last_backward_of_a_module_may_reduce_its_gradients(cluster, config):
    plan = mimokit.plan(config)
    ranks = cluster.run(_reducing, plan, config, world_size=2)
    for rank, found in enumerate(ranks):
        here = {stage.module for stage in plan.program.stages_of(rank)}
        assert sorted(found) == sorted((module, 2) for module in here)
