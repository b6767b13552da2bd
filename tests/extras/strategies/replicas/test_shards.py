"""What ranks of a layout give to exchanges follows the shapes of their shards."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mimokit.architecture.tensor_cut import TensorCut
from mimokit.config import StrategyConfig
from mimokit.extras.strategies.exchanges import Masks, plan_strategy
from mimokit.extras.strategies.exchanges.shards import HeldShard, in_order
from mimokit.planning.replicas import ReplicaPlan
from mimokit.planning.types import LayoutPlan
from tests.extras.strategies.replicas.test_plan import planned, with_strategy
from tests.planning.layouts import layout, sizes

NUMBERS = range(24)
SELECTORS = ["random", "shuffled_sequential", "partitioned"]


def replicas(plan: LayoutPlan) -> ReplicaPlan:
    assert plan.replicas is not None
    return plan.replicas


@pytest.mark.parametrize("selector", SELECTORS)
def test_the_bytes_of_a_mask_are_those_of_its_entries_on_each_shard(selector: Any) -> None:
    """A vocabulary of 90 rows padded to 96, and a bias that all ranks have, by brute force."""
    config = StrategyConfig(name="sparta", p_sparta=0.15, index_selector=selector)
    shapes = {"table": (90, 7), "bias": (50,)}
    masks = Masks(selector, 0.15, 5)
    planned_sums = dict.fromkeys(NUMBERS, 0.0)
    drawn_sums = dict.fromkeys(NUMBERS, 0)
    for shard in TensorCut((90, 7), 0, multiple=32).shards(3):
        held = (("table", HeldShard.of(shard)), ("bias", HeldShard((50,), 50)))
        (rule,) = plan_strategy(config, shapes, 2, 5, held=held).rules
        payloads = {number: rule.payload(number, 2) for number in NUMBERS}
        drawn = {
            number: len(shard.places(masks.indices("table", 630, number)))
            + len(masks.indices("bias", 50, number))
            for number in NUMBERS
        }
        off = sum(payloads.values()) - 4 * sum(drawn.values())
        assert rule.deviation > 0
        assert abs(off) <= 3 * rule.deviation * math.sqrt(len(NUMBERS))
        for number in NUMBERS:
            planned_sums[number] += payloads[number]
            drawn_sums[number] += 4 * drawn[number]
    if selector != "random":  # Of all shards together nothing is left to chance.
        assert planned_sums == pytest.approx(drawn_sums)


@pytest.mark.parametrize("selector", SELECTORS[1:])
def test_the_bytes_of_a_mask_of_whole_tensors_are_exact(selector: Any) -> None:
    config = layout("heterogeneous", sizes(pp=2, offset=1), 4, vision=sizes())
    for network in config.model.module_architectures.values():
        network.num_layers, network.hidden_size, network.num_attention_heads = 2, 24, 4
    config = with_strategy(config, name="sparta", replicas=2, p_sparta=0.1, index_selector=selector)
    plan = replicas(planned(config)[0])
    masks = Masks(selector, 0.1, config.runtime.seed)
    for rank in range(plan.layout_ranks):
        (rule,) = plan.plan_of(rank).rules
        assert rule.deviation == 0
        for number in (0, 7, 13):
            entries = [(name, one.entries) for name, one in plan.shards.ranks[rank]]
            drawn = sum(len(masks.indices(*one, number)) for one in entries)
            assert rule.payload(number, 2) == 4 * drawn


def test_layers_of_further_tokens_are_shards_like_others() -> None:
    """The second stage has them, and a copy of the embedding that is no tensor of its own."""
    config = layout("heterogeneous", sizes(tp=2, pp=2, offset=2), 4, vision=sizes(tp=2))
    config.model.module_architectures["language"].mtp_num_layers = 1
    plan = replicas(planned(with_strategy(config, name="diloco", replicas=2))[0])
    first, last = ({name for name, _ in plan.shards.ranks[rank]} for rank in (2, 4))
    assert "language.mtp.layers.0.eh_proj.weight" in last - first
    assert "language.embedding.word_embeddings.weight" in first & last


def test_no_rank_trains_the_bias_of_a_router() -> None:
    config = layout("homogeneous", sizes(dp=2), 4)
    network = config.model.module_architectures["language"]
    network.num_moe_experts, network.add_bias_linear = 4, False
    network.moe_router_enable_expert_bias = True
    plan = replicas(planned(with_strategy(config, name="diloco", replicas=2))[0])
    names = [name for name, _ in plan.shards.ranks[0]]
    assert not any("expert_bias" in name or "rest of stage" in name for name in names)


def test_a_rank_trains_its_own_experts() -> None:
    config = layout("homogeneous", sizes(dp=2), 4)
    config.model.module_parallelisms["language"].expert_parallel = 2
    network = config.model.module_architectures["language"]
    network.num_layers, network.num_moe_experts, network.add_bias_linear = 2, 4, False
    plan = replicas(planned(with_strategy(config, name="diloco", replicas=2))[0])
    held = [{name for name, _ in plan.shards.ranks[rank]} for rank in (0, 1)]
    experts = [
        {name.split("local_experts.")[1][0] for name in names if "local_experts" in name}
        for names in held
    ]
    assert experts == [{"0", "1"}, {"2", "3"}]
    assert {name for name in held[0] ^ held[1] if "local_experts" not in name} == set()


def test_parts_of_a_model_have_one_order() -> None:
    names = ["b.layers.10.w", "b.layers.9.w", "a.x"]
    assert list(in_order(dict.fromkeys(names, (1,)))) == ["a.x", "b.layers.9.w", "b.layers.10.w"]
