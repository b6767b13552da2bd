"""What the backward pass computes again has the masks of the forward pass."""

import pytest
import torch

import mimokit
from mimokit.engine.models.rng import ModuleRngTracker
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.rank_steps import state_of
from tests.whole_runs import recomputed


def _gradients(plan, config):
    """Return loss and summed gradients of a step, and the loss of held-out samples."""
    from mimokit.engine.pipeline.steps import forward_backward_steps
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.evaluation import evaluate

    with state_of(plan, config) as state:
        state.update.zero()
        losses = exhaust(forward_backward_steps(state.iterator, state.model))
        gradients = {
            f"{name}.{path}": parameter.main_grad.clone()
            for name, module in state.model.modules().items()
            for path, parameter in module.named_parameters()
        }
        tested = evaluate(state.model, state.data, config.data, 16)
        return [one.loss_sum for one in losses], gradients, tested.loss


@pytest.mark.parametrize(
    "make",
    [lambda: digits_config((1, 2), (2, 1), 2), lambda: apart_config((1, 1, 1), (1, 2, 1), 2)],
)
def test_gradients_are_those_without_recompute_bit_for_bit(cluster, make):
    def computed(config):
        plan = mimokit.plan(config)
        return cluster.run(_gradients, plan, config, world_size=plan.world_size)

    plain, without_dropout = computed(recomputed(make())), computed(make())
    for granularity in ("selective", "full"):
        config = recomputed(make(), images=granularity, language_module=granularity)
        again = computed(config)
        for (losses, gradients, tested), (own, expected, own_tested) in zip(
            again, plain, strict=True
        ):
            assert losses == own
            assert tested == own_tested
            assert all(torch.equal(gradients[name], expected[name]) for name in expected)
    for (losses, _, tested), (own, _, own_tested) in zip(plain, without_dropout, strict=True):
        assert (losses == own) == (not any(own)), "numbers are dropped in training"
        assert tested == own_tested, "and none in an evaluation"


def test_a_fork_inside_a_fork_draws_other_numbers() -> None:
    tracker = ModuleRngTracker()
    tracker.add("images/model-parallel-rng", 1)
    with tracker.computing("images"), tracker.fork():
        outer = torch.rand(3)
        with tracker.fork():
            inner = torch.rand(3)
        after = torch.rand(3)
    assert len({*outer.tolist(), *inner.tolist(), *after.tolist()}) == 9
