"""DeMo between replicas in fewer bits steps main weights as one process does."""

from __future__ import annotations

import pytest
import torch

import mimokit
from mimokit.config import StrategyConfig
from mimokit.engine.verify.strategies.pieces import Choices
from tests import seams
from tests.layouts import digits_config
from tests.layouts_multimodal import LANGUAGE
from tests.planted import planted
from tests.whole_runs import IN_FULL, SHARDED_STATES, in_precision, with_sizes, with_strategy

STEPS = 3
DEMO = {"name": "demo", "replicas": 2, "compression_topk": 8}


def _steps(plan, config, steps):
    """Return of each step name -> whole gradient and main weight after it, and the first weights.

    A weight that is not its main weight, rounded, is left out.
    """
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.models.weights import named_parameters
    from mimokit.engine.parallel.main_weights import is_main_weight, main_value, whole_gradient
    from mimokit.engine.parallel.marks import shard_of
    from mimokit.engine.replicas.world import replica_world
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.loop import prepared, training_step

    with replica_world(plan) as (own, peers), prepared(own, config, default_data, peers) as state:
        named = {
            f"{module}.{name}": parameter
            for module, wrapped in state.model.modules().items()
            for name, parameter in named_parameters(wrapped.module).items()
        }
        weights = {name: main_value(one).clone() for name, one in named.items()}
        cuts = {name: shard_of(one).cut for name, one in named.items()}
        recorded = []
        for _ in range(steps):
            exhaust(training_step(state))
            gradients = {name: whole_gradient(one).clone() for name, one in named.items()}
            after = {name: main_value(one).clone() for name, one in named.items()}
            rounded = {k: one for k, one in after.items() if is_main_weight(named[k], one)}
            recorded.append((gradients, rounded))
        return weights, cuts, recorded


def _differ(found):
    """Return the share of the weights of a step that differ from arithmetic in one process."""
    weights, cuts, _ = found[0]
    models = [
        {name: torch.nn.Parameter(one.clone()) for name, one in replica[0].items()}
        for replica in (found[0], found[2])
    ]
    shards = {name: cut.shards(1) for name, cut in cuts.items()}
    oracle = Choices(StrategyConfig(**DEMO), models, shards)
    was_open = {name: torch.zeros(one.numel(), dtype=torch.bool) for name, one in weights.items()}
    wrong = compared = total = 0
    for step in range(STEPS):
        for model, (_, _, recorded) in zip(models, (found[0], found[2]), strict=True):
            for name, weight in model.items():
                weight.grad = recorded[step][0][name].view(weight.shape)
        with torch.no_grad():
            for name, mask in oracle.step().items():
                was_open[name] |= mask
        for _, _, recorded in found:
            for name, weight in models[0].items():
                closed = ~was_open[name]
                there = recorded[step][1].get(name, torch.full_like(weight, torch.nan))
                near = torch.isclose(there.flatten(), weight.flatten(), rtol=0, atol=1e-6)
                wrong += int((closed & ~near).sum())
                compared += int(closed.sum())
                total += closed.numel()
    assert compared > 0.7 * total
    return wrong / compared


@pytest.mark.parametrize(
    ("precision", "shards"),
    [("bf16", {}), ("bf16", SHARDED_STATES), ("bf16", IN_FULL), ("fp16", SHARDED_STATES)],
    ids=["whole", "states", "layers", "states in fp16"],
)
def test_main_weights_are_stepped_as_in_one_process(cluster, precision, shards):
    config = digits_config((1, 2), (1, 2), initial_loss_scale=64.0)
    config = with_sizes(config, ("images", LANGUAGE), **shards)
    half = with_strategy(in_precision(lambda: config, precision), **DEMO)
    found = cluster.run(_steps, mimokit.plan(half), half, STEPS, world_size=4)
    assert _differ(found) == 0


def _not_rounded(original):
    """Plant: layers do not compute with what is stepped."""
    return lambda self: None


def _own_mean(original):
    """Plant: a replica steps by what it sent itself."""
    return lambda parts, entries: original(parts[:1], entries)


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        (seams.PUBLISH, _not_rounded),
        (seams.DEMO_MEAN, _own_mean),
    ],
)
def test_the_check_catches(cluster, target, fault):
    config = with_strategy(in_precision(lambda: digits_config((1, 2), (1, 2)), "bf16"), **DEMO)
    with planted(cluster, target, fault, 4):
        found = cluster.run(_steps, mimokit.plan(config), config, STEPS, world_size=4)
    assert _differ(found) > 0.01


def _overflowing(plan, config, overflows):
    """Train; return of each step the scale of the losses after it, and whether weights changed.

    Args:
        overflows: by step, the replica whose gradients are infinite.
    """
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.parallel.main_weights import main_value
    from mimokit.engine.replicas.world import replica_world
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.loop import prepared, training_step

    found = []
    with replica_world(plan) as (own, peers), prepared(own, config, default_data, peers) as state:
        parameters = [p for one in state.model.modules().values() for p in one.parameters()]
        reduce = state.update.reduce
        for replica in overflows:

            def overflown(replica=replica):
                tokens = reduce()
                if replica == peers.replica:
                    parameters[0].main_grad.fill_(torch.inf)
                return tokens

            state.update.reduce = overflown
            before = [main_value(one).clone() for one in parameters]
            exhaust(training_step(state))
            moved = not all(map(torch.equal, before, map(main_value, parameters)))
            found.append((state.update.loss_scale.value, moved))
    return found


def test_what_overflows_on_one_replica_is_left_out_on_all(cluster):
    config = digits_config((1, 2), (1, 2), initial_loss_scale=64.0)
    half = with_strategy(in_precision(lambda: config, "fp16"), **DEMO)
    found = cluster.run(_overflowing, mimokit.plan(half), half, [1, None, 0], world_size=4)
    assert found == [[(32.0, False), (32.0, True), (16.0, False)]] * 4
