"""Bytes of activations against what autograd really keeps of Megatron's layer, forward on a CPU.

Its norms here know no sequence parallelism, and its attention core is not fused: one that keeps
what flash attention keeps (query, key, value, output) stands in its place. RMSNorm, experts and
latent attention run here in pieces that keep more than the fused ones on a GPU do.

Beside layers: logits in their loss, blocks of CUDA's allocator, and what the optimizer copies.
"""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from mimokit.architecture import Transformer
from mimokit.architecture.layer_work.saved_activations import joining_activations, layer_activations
from mimokit.architecture.rank_parameters import RankParameters
from mimokit.config.sizes import RECOMPUTE_NAMES, ParallelSizes
from mimokit.prediction.memory import Storage, stage_memory
from mimokit.prediction.memory.states import update_bytes
from tests import networks
from tests.architecture.model_parallel import model_parallel
from tests.networks import language, stack
from tests.rows import rows

SEQ, SAMPLES = 16, 2
STATISTICS = 2 * 2 * 4
"""Bytes per token of mean and deviation of both norms, which the formulas leave out."""
SIZES = 1, 64, 8, 8, 8, 256
GPT = stack(*SIZES, **networks.GPT)
NETS = {
    "GPT": GPT,
    "grouped queries": stack(1, 64, 8, 2, 8, 256, **networks.GPT),
    "wide heads": stack(1, 64, 8, 4, 16, 96, **networks.GPT),
    "SwiGLU": stack(1, 64, 8, 2, 8, 160, norm="LayerNorm"),
}


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_layer_keeps_what_the_formula_says(cluster, tensor: int) -> None:
    tokens = SEQ * SAMPLES
    sizes = ParallelSizes(tensor, sequence_parallel=False)
    for saved in cluster.run(_saved_bytes, NETS, world_size=tensor):
        for name, net in NETS.items():
            expected = float(layer_activations(net, None, sizes, tokens, SEQ))
            assert saved[name] - STATISTICS * tokens == expected, name


@pytest.mark.parametrize("recompute", range(len(RECOMPUTE_NAMES)))
def test_an_attention_that_is_not_fused_keeps_its_scores(cluster, recompute: int) -> None:
    """In fp32, as runs are: Megatron's own core, with what each granularity recomputes."""
    tokens, name = SEQ * SAMPLES, RECOMPUTE_NAMES[recompute]
    (saved,) = cluster.run(_saved_bytes, NETS, name, world_size=1)
    sizes = ParallelSizes(recompute=recompute, sequence_parallel=False)
    norms, mask, kind_of_mask = STATISTICS * tokens, SEQ**2, 4
    beside = {"none": norms + mask, "selective": norms + kind_of_mask, "full": 0}
    for net_name, net in NETS.items():
        expected = layer_activations(net, None, sizes, tokens, SEQ, flash=False, number=4)
        # Where heads share keys, the query is kept as it was computed and as it is recomputed with.
        twice = name == "selective" and net.kv_heads < net.heads
        query = 4 * net.heads * net.qk_dim * tokens * twice
        assert saved[net_name] - beside[name] - query == float(expected), net_name


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_layer_of_further_tokens_keeps_what_its_norms_and_its_projection_take(
    cluster, recompute: str
) -> None:
    tokens = SEQ * SAMPLES
    sizes = ParallelSizes(recompute=RECOMPUTE_NAMES.index(recompute), sequence_parallel=False)
    layer = float(layer_activations(GPT, None, sizes, tokens, SEQ))
    joining = float(joining_activations(GPT, sizes, tokens, 2, 2))
    norms = (recompute == "none") * (STATISTICS * 5 // 2) * tokens
    for layers in (1, 2):
        (saved,) = cluster.run(_saved_of_further, layers, recompute, world_size=1)
        assert saved - layers * norms == layers * (layer + joining)


def test_a_width_that_is_off_is_caught(cluster) -> None:
    (saved,) = cluster.run(_saved_bytes, {"GPT": GPT}, world_size=1)
    wrong = stack(1, 64, 8, 8, 8, 255, **networks.GPT)
    expected = float(layer_activations(wrong, None, ParallelSizes(), SEQ * SAMPLES, SEQ))
    assert saved["GPT"] - STATISTICS * SEQ * SAMPLES != expected


LOGITS = language(*SIZES, **networks.GPT, vocab=4096)
BESIDE_LOGITS = 64
"""Bytes per token, at most, of what a loss has of each token beside its logits."""


@pytest.mark.parametrize("tensor", [1, 2])
def test_logits_take_what_the_formula_says_until_their_gradient_is_there(
    cluster, tensor: int
) -> None:
    tokens, sizes = SEQ * SAMPLES, ParallelSizes(tensor, sequence_parallel=False)
    for peaks in cluster.run(_peak_of_loss, LOGITS.vocab // tensor, world_size=tensor):
        for number, peak in peaks.items():
            parts = stage_memory(LOGITS, sizes, SEQ * SAMPLES, 1, 0, storage=Storage(number=number))
            beside = peak - float(parts["logits"])
            assert 0 <= beside <= BESIDE_LOGITS * tokens, number


def _peak_of_loss(words: int) -> dict[int, int]:
    """Return bytes per number -> the most bytes that a loss and its backward pass hold at once."""
    import torch
    import torch.distributed as dist

    from mimokit.engine.parallel.loss import vocab_parallel_cross_entropy

    labels, found = torch.zeros(SEQ, SAMPLES, dtype=torch.long), {}
    for kind in (torch.bfloat16, torch.float32):
        given = torch.zeros(SEQ, SAMPLES, words, dtype=kind, requires_grad=True)
        with _live_bytes() as live:
            losses = vocab_parallel_cross_entropy(given * 1, labels, dist.group.WORLD)
            losses.sum().backward()
        found[kind.itemsize] = live.most
    return found


def _live_bytes() -> Any:
    """Return a mode that counts the storages that operations make, until they are freed."""
    import weakref

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Live(TorchDispatchMode):
        now = most = 0

        def __torch_dispatch__(
            self, operation: Any, _: Any, args: Any = (), more: Any = None
        ) -> Any:
            inputs = {one.untyped_storage()._cdata for one in args if torch.is_tensor(one)}
            made = operation(*args, **(more or {}))
            for tensor in made if isinstance(made, tuple) else (made,):
                storage = tensor.untyped_storage() if torch.is_tensor(tensor) else None
                if storage is not None and storage._cdata not in inputs:
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self.freed, storage.nbytes())
            self.most = max(self.most, self.now)
            return made

        def freed(self, size: int) -> None:
            self.now -= size

    return Live()


BLOCK = 512
"""Bytes that the sizes of blocks of CUDA's allocator are multiples of."""


def test_blocks_of_the_allocator_are_no_larger_than_a_real_layer(cluster) -> None:
    """At full size, of tensors without memory: awkward widths of a vision encoder, 577 patches."""
    net = stack(1, 1152, 16, 16, 72, 4304, **networks.GPT)
    (kept,) = cluster.run(_kept_at_full_size, net, 577, world_size=1)
    sizes = ParallelSizes(sequence_parallel=False)
    formula = float(layer_activations(net, None, sizes, 577, 577))
    assert sum(kept) - formula == STATISTICS // 2 * 577, "of statistics in 16 bits"
    blocks = sum(-(-size // BLOCK) * BLOCK for size in kept)
    assert 1 < blocks / sum(kept) < 1.001


def _kept_at_full_size(net: Transformer, tokens: int) -> list[int]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from mimokit.engine.models.rng import seed_modules

    seed_modules(1, {})
    kept: dict[int, torch.Tensor] = {}
    with model_parallel(1), FakeTensorMode():
        block = _block(net, 1, None)
        weights = {weight.untyped_storage()._cdata for weight in block.parameters()}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage()._cdata not in weights:
                kept[tensor.untyped_storage()._cdata] = tensor
            return tensor

        given = torch.empty(tokens, 1, net.hidden, dtype=torch.bfloat16, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = block(given, None)
        del out
        return [tensor.untyped_storage().nbytes() for tensor in kept.values()]


@rows("gradient", 2, 4)
def test_the_optimizer_copies_gradients_in_16_bits_all_at_once(gradient: int) -> None:
    import torch

    import_module("mimokit.engine.megatron")  # opens Megatron for a CPU
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    weights = [torch.nn.Parameter(torch.zeros(count)) for count in (640, 96)]
    for weight in weights:
        kind = torch.bfloat16 if gradient == 2 else torch.float32
        weight.main_grad = torch.zeros(weight.numel(), dtype=kind)
    masters = [torch.nn.Parameter(torch.zeros(weight.numel())) for weight in weights]
    optimizer = SimpleNamespace(
        is_stub_optimizer=False,
        ddp_config=SimpleNamespace(use_megatron_fsdp=False),
        config=SimpleNamespace(use_precision_aware_optimizer_no_fp8_or_ds_fp8=False),
        model_float16_groups=[weights],
        model_fp32_groups=[],
        shard_fp32_from_float16_groups=[masters],
        shard_fp32_groups=[],
        _get_model_param_range_map=lambda weight: {
            "param": SimpleNamespace(start=0, end=weight.numel(), size=weight.numel())
        },
    )
    DistributedOptimizer._copy_model_grads_to_main_grads(optimizer)
    before = {weight.main_grad.data_ptr() for weight in weights}
    copied = sum(one.grad.nbytes for one in masters if one.grad.data_ptr() not in before)
    held = RankParameters(sum(weight.numel() for weight in weights))
    assert copied == float(update_bytes(held, ParallelSizes(), storage=Storage(gradient=gradient)))


def _saved_bytes(nets: dict[str, Transformer], recompute: str | None = None) -> dict[str, int]:
    """Run a layer of each forward on the ranks of one tensor-parallel group; return bytes kept.

    Args:
        recompute: with Megatron's own attention core, in fp32; None: with a fused one, in bf16.
    """
    import torch
    import torch.distributed as dist

    from mimokit.engine.models.rng import seed_modules

    seed_modules(1, {})
    found = {}
    with model_parallel(dist.get_world_size()):
        for name, net in nets.items():
            block = _block(net, dist.get_world_size(), recompute)
            given = torch.randn(SEQ, SAMPLES, net.hidden, dtype=block.config.params_dtype)
            given.requires_grad_()
            found[name] = _bytes_saved_by(block, given, None)
    return found


def _bytes_saved_by(module: Any, *args: Any, **named: Any) -> int:
    """Return the bytes that autograd keeps of a forward pass, without weights."""
    import torch

    weights = {weight.data_ptr() for weight in module.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: Any) -> Any:
        if tensor.data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = module(*args, **named)
    del out
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def _saved_of_further(layers: int, recompute: str) -> int:
    """Return bytes that Megatron's block of multi-token prediction keeps, with a fused core."""
    import torch
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec
    from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionBlock

    from mimokit.engine.models.rng import seed_modules

    def embedding(**_: Any) -> torch.Tensor:
        return torch.randn(SEQ, SAMPLES, GPT.hidden, dtype=torch.bfloat16, requires_grad=True)

    seed_modules(1, {})
    with model_parallel(1):
        block = _block(GPT, 1, None)
        config = block.config
        config.mtp_num_layers = layers
        if recompute == "full":
            config.recompute_granularity, config.recompute_method = "full", "uniform"
            config.recompute_num_layers = 1
        spec = get_gpt_mtp_block_spec(config, block.submodules.layer_specs[0], False)
        ids = torch.zeros(SAMPLES, SEQ, dtype=torch.long)
        return _bytes_saved_by(
            MultiTokenPredictionBlock(config, spec), input_ids=ids, position_ids=ids,
            hidden_states=embedding(), attention_mask=None, embedding=embedding,
        )  # fmt: skip


def _block(net: Transformer, tensor: int, recompute: str | None) -> Any:
    import torch
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.transformer_block import TransformerBlock

    config = TransformerConfig(
        num_layers=1, hidden_size=net.hidden, num_attention_heads=net.heads,
        num_query_groups=net.kv_heads, kv_channels=net.head_dim, ffn_hidden_size=net.ffn,
        gated_linear_unit=net.gated,
        activation_func=torch.nn.functional.silu if net.gated else torch.nn.functional.gelu,
        add_bias_linear=False, tensor_model_parallel_size=tensor,
        params_dtype=torch.bfloat16 if recompute is None else torch.float32, bf16=recompute is None,
        recompute_granularity=recompute if recompute in ("selective", "full") else None,
        recompute_method="uniform" if recompute == "full" else None,
        recompute_num_layers=1 if recompute == "full" else None, hidden_dropout=0.0,
        attention_dropout=0.0, use_cpu_initialization=True, bias_activation_fusion=net.gated,
        bias_dropout_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False,
    )  # fmt: skip
    block = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    if recompute is None:
        block.layer_specs[0].submodules.self_attention.submodules.core_attention = _flash_core()
    return TransformerBlock(config, block, post_layer_norm=False)


def _flash_core() -> Any:
    """Return an attention core that keeps query, key, value and output, each on its own."""
    import torch

    class Attend(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, *given: torch.Tensor) -> torch.Tensor:
            query, key, value = (one.permute(1, 2, 0, 3) for one in given)
            out = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, enable_gqa=True
            )
            out = out.permute(2, 0, 1, 3).contiguous()
            context.save_for_backward(*(one.contiguous().clone() for one in given), out)
            return out

    class Core(torch.nn.Module):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()

        def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
            out = Attend.apply(query, key, value)
            return out.reshape(*out.shape[:2], -1)

    return Core
