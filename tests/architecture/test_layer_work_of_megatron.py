"""The table of a layer's work against Megatron's real layers: what torch counts while they run."""

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from mimokit.architecture import LanguageModel, Transformer
from mimokit.architecture.flops import forward_flops
from mimokit.architecture.layer_work.collectives import End, Way, end_collectives, layer_collectives
from mimokit.architecture.layer_work.products import layer_products, score_work
from mimokit.config.sizes import ParallelSizes
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.step_time import System, load_software
from tests.architecture.model_parallel import model_parallel
from tests.architecture.test_gpt_of_megatron import build_gpt
from tests.networks import GPT, language
from tests.prediction.shipped import language_model, product_seconds

SEQ, SAMPLES, LAYERS = 16, 2, 2
TOKENS = SEQ * SAMPLES


def model(kv_heads: int = 2, **meant: Any) -> LanguageModel:
    fields = {"qkv_bias": True, "vocab": 128, "vocab_multiple": 16, "head_dim": 8, **meant}
    return language(LAYERS, 64, 8, kv_heads=kv_heads, ffn=96, **fields)


EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn": 48}
GPT2, QWEN = model(8, **GPT | {"ffn_bias": True}), model()
MODELS = {
    "GPT-2": GPT2,
    "grouped queries, gated": QWEN,
    "one group for two ranks": model(1),
    "wide heads": model(head_dim=16),
}
MIXTURES = {
    "Mixtral": model(qkv_bias=False, **EXPERTS),
    "Qwen2-MoE": model(**EXPERTS, shared_ffn=32, shared_gate=True),
}

NAMES = {
    "c10d::allreduce_": "all-reduce",
    "c10d::_allgather_base_": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
}
Calls = Counter[tuple[str, int]]


def sizes(tensor: int, sequence: bool = False) -> ParallelSizes:
    return ParallelSizes(tensor, sequence_parallel=sequence)


def operations(net: Transformer, tensor: int) -> float:
    """Return those of a forward pass on one rank, by the table."""
    per_token = sum(product.weights for product in layer_products(net, net.moe, sizes(tensor)))
    # Megatron's attention for a CPU computes the masked half of the scores as well.
    per_token += score_work(net, sizes(tensor), SEQ)
    return float(2 * TOKENS * (LAYERS * per_token + net.hidden * 128 / tensor))


def collectives(net: Transformer, tensor: int, sequence: bool, way: Way) -> Calls:
    """Return the calls of a pass, and the numbers of the whole tensor of each, by the table."""
    found: Calls = Counter()
    for each in layer_collectives(net, None, sizes(tensor, sequence), way):
        found[each.kind, int(TOKENS * each.numbers)] += LAYERS * int(each.count)
    ends: tuple[End, ...] = ("embedding", "output")
    for end in ends:
        for each in end_collectives(end, net.hidden, sizes(tensor, sequence), way):
            found[each.kind, int(TOKENS * each.numbers)] += int(each.count)
    return +found


@pytest.mark.parametrize("tensor", [1, 2])
def test_operations_and_collectives_are_those_of_the_table(cluster, tensor: int) -> None:
    models = {**MODELS, **(MIXTURES if tensor == 1 else {})}
    for counted in cluster.run(_counted, models, world_size=tensor):
        for name, built in models.items():
            (forward, both, ahead, back), net = counted[name], built.net
            assert forward == operations(net, tensor), name
            assert both == 3 * forward, name
            assert ahead == collectives(net, tensor, False, "forward"), name
            assert back == collectives(net, tensor, False, "backward"), name
        # The table catches a network that is described wrongly.
        forward, _, ahead, back = counted["grouped queries, gated"]
        for wrong in (model(8), model(gated=False)):
            assert forward != operations(wrong.net, tensor)
        few = model(1).net
        assert (ahead == collectives(few, tensor, False, "forward")) == (tensor == 1)
        assert (back == collectives(few, tensor, False, "backward")) == (tensor == 1)


def test_every_reader_counts_the_weights_of_a_layer_of_qwen() -> None:
    qwen = replace(language_model("qwen2.5-0.5b"), vocab=1)
    net = qwen.net
    weights = 896 * (896 + 2 * 128) + 896 * 896 + 3 * 896 * 4864
    assert weights == pytest.approx(14.9e6, rel=1e-3)
    model_flops = forward_flops(qwen, 7, 3)
    assert model_flops.layers == 2 * 21 * weights * net.layers
    ahead = forward_flops(replace(qwen, next_token_layers=1), 7, 3)
    another = 2 * 21 * (weights + 896 + 2 * 896**2) + model_flops.core / net.layers
    assert ahead.last - model_flops.last == another
    h100 = replace(load_hardware("h100"), memory_bandwidth=1e30)
    system = System(h100, load_software("megatron-bridge"))
    seconds = product_seconds(net, ParallelSizes(2), 21, system)
    assert float(seconds) == pytest.approx(float(21 * weights / system.matrix_rate()), rel=1e-3)


def test_sequence_parallelism_gathers_and_scatters(cluster) -> None:
    models = {"GPT-2": GPT2, "grouped queries, gated": QWEN}
    for counted in cluster.run(_counted, models, True, world_size=2):
        for name, built in models.items():
            assert counted[name][2:] == tuple(
                collectives(built.net, 2, True, way) for way in ("forward", "backward")
            )


def _counted(
    models: dict[str, LanguageModel], sequence: bool = False
) -> dict[str, tuple[int, int, Calls, Calls]]:
    """Run models on the ranks of one tensor-parallel group.

    Returns:
        Name -> operations of the forward pass and of both, collectives of the forward pass and of
        the backward pass.
    """
    import torch
    import torch.distributed as dist
    from megatron.core.transformer.moe import moe_utils
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    from mimokit.engine.models.rng import seed_modules
    from mimokit.engine.parallel.loss import vocab_parallel_cross_entropy

    class Collectives(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls: Calls = Counter()

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function.namespace == "c10d":
                tensors = [
                    one
                    for one in torch.utils._pytree.tree_leaves(args)
                    if isinstance(one, torch.Tensor)
                ]
                kind = NAMES[function._schema.name]
                self.calls[kind, max(one.numel() for one in tensors)] += 1
            return function(*args, **(kwargs or {}))

    found = {}
    size = dist.get_world_size()
    seed_modules(1, {})
    # Without Transformer Engine, Megatron's router asks for a function of it all the same.
    router = mock.patch.object(moe_utils, "te_general_gemm", None, create=True)
    with router, model_parallel(size, expert_tensor_parallel_size=1) as state:
        for name, described in models.items():
            built = build_gpt(described, sizes(size), 0, sequence_parallel=sequence)
            ids = torch.arange(TOKENS).view(SAMPLES, SEQ) % 128
            mask = torch.ones(1, 1, SEQ, SEQ).triu(1).bool()
            with FlopCounterMode(display=False) as flops:
                with Collectives() as ahead:
                    logits = built(ids, ids % SEQ, mask)
                    loss = logits
                    if size > 1:  # else it would call a group of one
                        group = state.get_tensor_model_parallel_group()
                        loss = vocab_parallel_cross_entropy(logits, ids, group)
                forward = flops.get_total_flops()
                with Collectives() as back:
                    loss.sum().backward()
            found[name] = forward, flops.get_total_flops(), ahead.calls, back.calls
    return found
