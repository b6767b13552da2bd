"""In fp16 the scale of the loss follows overflows, on all modules alike."""

import math

import pytest

import mimokit
from mimokit.engine.parallel import loss_scale
from tests.layouts_apart import apart_config
from tests.layouts_multimodal import LANGUAGE
from tests.rank_steps import run_step, state_of

START = 64.0


def _steps(plan, config, overflows):
    """Train; return of each step whether its norm is finite, scales, and whether weights changed.

    Args:
        overflows: by step, the module that has an infinite gradient, on one of its ranks.
    """
    import torch
    import torch.distributed as dist

    from mimokit.engine.megatron import MoEAuxLossAutoScaler
    from mimokit.engine.parallel.main_weights import main_value

    found = []
    with state_of(plan, config) as state:
        modules, reduce = state.model.modules(), state.update.reduce

        def weights():
            return [main_value(p).clone() for m in modules.values() for p in m.parameters()]

        for name in overflows:

            def overflown(name=name):
                tokens = reduce()
                if name in modules and dist.get_rank() == plan.modules[name].rank_offset:
                    next(modules[name].parameters()).main_grad.fill_(math.inf)
                return tokens

            state.update.reduce = overflown
            before = weights()
            norm = run_step(state).grad_norm
            moved = not all(map(torch.equal, before, weights()))
            auxiliary = float(MoEAuxLossAutoScaler.main_loss_backward_scale)
            found.append((math.isfinite(norm), auxiliary, state.update.loss_scale.value, moved))
    return found


def test_an_overflow_in_one_module_skips_the_step_in_all(cluster):
    config = apart_config((1, 1, 2), (1, 1, 2), precision="fp16", initial_loss_scale=START)
    arguments = mimokit.plan(config), config, ["images", "", LANGUAGE, ""]
    by_rank = cluster.run(_steps, *arguments, world_size=4)
    half, quarter = START / 2, START / 4
    expected = [
        (False, START, half, False),
        (True, half, half, True),
        (False, half, quarter, False),
        (True, quarter, quarter, True),
    ]
    assert by_rank == [expected] * 4


def test_steps_before_an_overflow_do_not_count_towards_a_larger_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 2)
    scale, found = loss_scale.LossScale(START), []
    for overflowed in (False, True, False, False, False):
        scale.update(overflowed)
        found.append(scale.value)
    assert found == [START, START / 2, START / 2, START, START]
