"""Reduction, norm, clipping and the optimizer, on real ranks."""

import copy
from typing import Any

import pytest
import torch

import mimokit
from mimokit.config import RuntimeConfig
from mimokit.engine.parallel.main_weights import main_value, main_weight
from mimokit.engine.parallel.optimizer import MainGradAdamW, learning_rate_scheduler, on_main_grad
from mimokit.engine.parallel.update import MainGradUpdate
from mimokit.engine.part_times import UNTIMED
from mimokit.extras.strategies.nodes.optim import OptimSpec
from tests.layouts import digits_config
from tests.rows import rows


def _finalize(plan, config, gradients, tokens):
    """Fill every gradient with a number per rank, finalize, return a number per module."""
    import torch.distributed as dist

    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.training.optimizer_step import prepare

    state = prepare(RunOfRank(plan, config))
    rank = dist.get_rank()
    for module in state.model.modules().values():
        for parameter in module.parameters():
            parameter.main_grad.fill_(gradients[rank])
    state.model.modules()["language_module"].num_tokens = tokens[rank]
    total = state.update.reduce()
    found = {
        name: sorted({float(p.main_grad.flatten()[0]) for p in module.parameters()})
        for name, module in state.model.modules().items()
    }
    return total, found


def test_gradients_are_summed_and_divided_by_the_tokens_of_all_ranks(cluster):
    """Gradients 100 to 400 over 4 replicas are 1000, over 100 tokens 10."""
    config = digits_config((1, 4), (1, 4))
    results = cluster.run(
        _finalize,
        mimokit.plan(config),
        config,
        [100, 200, 300, 400],
        [10, 20, 30, 40],
        world_size=4,
    )
    assert results == [(100, {"images": [10.0], "language_module": [10.0]})] * 4


def test_every_module_is_summed_over_its_own_replicas(cluster):
    """Tokens are counted over language replicas once, not once per tensor-parallel rank."""
    config = digits_config((1, 4), (2, 2))
    results = cluster.run(
        _finalize, mimokit.plan(config), config, [1, 2, 3, 4], [30, 30, 70, 70], world_size=4
    )
    assert [total for total, _ in results] == [100] * 4
    assert [found["images"] for _, found in results] == [[pytest.approx(0.10)]] * 4
    expected = [0.04, 0.06, 0.04, 0.06]
    assert [found["language_module"][0] for _, found in results] == pytest.approx(expected)


def test_no_unmasked_tokens_leaves_gradients_unscaled(cluster):
    config = digits_config((1, 2), (1, 2))
    results = cluster.run(_finalize, mimokit.plan(config), config, [1, 2], [0, 0], world_size=2)
    assert results[0] == (0, {"images": [3.0], "language_module": [3.0]})


def _norm_and_clip(plan, config):
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.training.optimizer_step import prepare

    state = prepare(RunOfRank(plan, config))
    for name, module in state.model.modules().items():
        parameters = list(module.parameters())
        for parameter in parameters:
            parameter.main_grad.zero_()
        # The first parameter of each module is held whole by every rank.
        parameters[0].main_grad.flatten()[0] = {"images": 3.0, "language_module": 4.0}[name]
    before = state.update.norm()
    state.update.clip(before)
    return before, state.update.norm()


def test_the_norm_spans_modules_and_counts_replicas_once(cluster):
    config = digits_config((1, 4), (2, 2), clip_grad=1.0)
    plan = mimokit.plan(config)
    # The language model's first parameter is its word embedding, cut over 2 ranks: each rank's
    # 4 is another entry, so the norm is sqrt(9 + 2 * 16).
    expected = (9 + 2 * 16) ** 0.5
    results = cluster.run(_norm_and_clip, plan, config, world_size=4)
    assert [before for before, _ in results] == pytest.approx([expected] * 4)
    assert [after for _, after in results] == pytest.approx([1.0] * 4, rel=1e-5)


def test_norms_three_and_four_are_five(cluster):
    config = digits_config((1, 2), (1, 2), clip_grad=0.0)
    results = cluster.run(_norm_and_clip, mimokit.plan(config), config, world_size=2)
    assert results == [(5.0, 5.0)] * 2


def test_adam_steps_on_what_was_reduced():
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.main_grad = torch.full((3,), 0.5)
    MainGradAdamW([parameter], lr=0.1, weight_decay=0.0).step()
    torch.testing.assert_close(parameter.detach(), torch.full((3,), 0.9))
    assert parameter.grad is None, "left in place it would be added to twice"


@rows("rule", "adam", "adamw", "sgd", "rmsprop", "adagrad")
def test_every_rule_of_torch_steps_on_what_was_reduced(rule):
    rule = OptimSpec.from_string(rule).cls
    ours, theirs = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    updates = on_main_grad(rule)([ours], lr=0.1), rule([theirs], lr=0.1)
    for number in range(3):
        ours.main_grad = theirs.grad = torch.arange(3.0) + number
        for one in updates:
            one.step()
        assert ours.grad is None
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, torch.ones(3))


def test_small_updates_of_bf16_weights_add_up():
    """Half a step of bf16 is 1/512 of a weight; the updates here are 1/1000 each."""
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    parameter.main_grad = torch.ones(3)
    optimizer = on_main_grad(torch.optim.SGD)([parameter], lr=1e-3)
    for _ in range(8):
        optimizer.step()
    assert parameter.grad is None
    torch.testing.assert_close(main_value(parameter), torch.full((3,), 0.992))
    assert torch.equal(parameter, main_value(parameter).bfloat16())
    assert not torch.equal(parameter, torch.ones_like(parameter))


def test_adam_refuses_a_parameter_that_no_rank_reduces():
    """torch's own would skip it without a word and never train."""
    optimizer = MainGradAdamW([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    with pytest.raises(RuntimeError, match=r"shape \(3,\) has no main_grad"):
        optimizer.step()


def test_adam_steps_on_nothing_where_all_is_frozen():
    optimizer = MainGradAdamW([], lr=0.1, weight_decay=0.0, fused=True)
    optimizer.step()
    assert not optimizer.state


def _rates(runtime: RuntimeConfig, iterations: int) -> list[float]:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.main_grad = torch.ones(3)
    optimizer = MainGradAdamW([parameter], lr=runtime.learning_rate)
    scheduler = learning_rate_scheduler(optimizer, runtime)
    rates = []
    for _ in range(iterations):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_the_learning_rate_rises_stays_and_falls():
    runtime = RuntimeConfig(
        num_iterations=10, learning_rate=1.0, learning_rate_warmup=4, learning_rate_decay=2
    )
    assert _rates(runtime, 12) == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 0.5, 0, 0]
    constant = RuntimeConfig(num_iterations=3, learning_rate=0.5)
    assert _rates(constant, 6) == [0.5] * 6
    odd = RuntimeConfig(num_iterations=9, learning_rate=3e-4, learning_rate_warmup=7)
    assert _rates(odd, 8) == [3e-4 * min(1.0, (step + 1) / 7) for step in range(8)]


class Wrapped(torch.nn.Linear):
    """A module of a rank with numbers as gradients."""

    times = UNTIMED

    def reduced(self, number: int) -> None:
        for parameter in self.parameters():
            parameter.main_grad = torch.linspace(-1, number + 1, parameter.numel()).view_as(
                parameter
            )


def _stepped(
    steps: int, dtype: torch.dtype, *, state: Any = None, first: int = 0
) -> tuple[Wrapped, MainGradUpdate]:
    torch.manual_seed(0)
    module = Wrapped(3, 2).to(dtype)
    optimizer = MainGradAdamW([], lr=0.1)
    optimizer.add_module(module, lr=0.3)
    runtime = RuntimeConfig(learning_rate=0.1, learning_rate_warmup=8)
    update = MainGradUpdate(((module, None),), optimizer, runtime)
    if state is not None:
        before, moments, progress = state
        for parameter, saved in zip(module.parameters(), before.parameters(), strict=True):
            main, main_before = main_weight(parameter), main_weight(saved)
            main.data.copy_(main_before)
            if main_before in moments:
                optimizer.state[main] = copy.deepcopy(moments[main_before])
        update.go_on(progress)
    for number in range(first, first + steps):
        module.reduced(number)
        update.step()
    return module, update


@rows("dtype", torch.float32, torch.bfloat16)
def test_an_update_goes_on_from_its_state(dtype: torch.dtype) -> None:
    """Moments, the warm-up, the rate of each module and weights of more bits are in it."""
    module, update = _stepped(3, dtype)
    saved = module, update.optimizer.state, update.progress()
    assert [group["lr"] for group in update.optimizer.param_groups] == pytest.approx([0.05, 0.15])
    whole, _ = _stepped(5, dtype)
    again, _ = _stepped(2, dtype, state=saved, first=3)
    anew, _ = _stepped(2, dtype, state=(module, {}, saved[2]), first=3)
    early, _ = _stepped(2, dtype, state=(*saved[:2], _stepped(0, dtype)[1].progress()), first=3)
    assert torch.equal(main_value(again.weight), main_value(whole.weight))
    assert torch.equal(again.weight, whole.weight)
    assert not torch.equal(anew.weight, whole.weight), "without the state it is another step"
    assert not torch.equal(early.weight, whole.weight), "nor at another rate"
