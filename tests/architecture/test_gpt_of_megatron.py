"""Every option of a description against Megatron's `GPTModel`: what each rank holds, exactly."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from mimokit.architecture import LanguageModel, LatentAttention
from mimokit.architecture.rank_parameters import rank_parameters
from mimokit.config.sizes import ParallelSizes
from tests.architecture.model_parallel import model_parallel
from tests.networks import GPT, language

SIZES = 4, 64, 8
BIASED = {**GPT, "ffn_bias": True}
EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn": 48}
LATENT = {"latent": True, "kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "v_dim": 8}


def gpt(**meant: Any) -> LanguageModel:
    fields = {"kv_heads": 2, "head_dim": 8, "ffn": 96, "vocab": 100, "vocab_multiple": 16}
    return language(*SIZES, **{**fields, **meant})


MODELS = {
    "GPT-2": gpt(kv_heads=8, **BIASED, tied=True, positions=32),
    "no biases": gpt(kv_heads=8, **GPT),
    "Llama": gpt(),
    "tied": gpt(tied=True),
    "Qwen2": gpt(qkv_bias=True),
    "Qwen3": gpt(qk_norm=True),
    "wide heads": gpt(head_dim=16),
    "padded": gpt(vocab_multiple=128),
    "Mixtral": gpt(**EXPERTS),
    "experts with GELU": gpt(kv_heads=8, **GPT, **EXPERTS),
    "first layers dense": gpt(**EXPERTS, leading_dense=1),
    "Qwen2-MoE": gpt(**EXPERTS, shared_ffn=32, shared_gate=True),
    "DeepSeek": gpt(
        **LATENT, q_rank=24, head_dim=12, **EXPERTS, shared_ffn=32, leading_dense=1,
        router_bias=True,
    ),
    "DeepSeek-V2-Lite": gpt(**LATENT, head_dim=12),
}  # fmt: skip
LAYOUTS = {
    "one rank": ParallelSizes(),
    "TP2 PP2 EP2 DP2": ParallelSizes(2, 2, expert=2, data=2),
    "TP4": ParallelSizes(4),
    "PP4 EP2 DP2": ParallelSizes(1, 4, expert=2, data=2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_holds_what_is_described(cluster, layout: str) -> None:
    sizes = LAYOUTS[layout]
    own = {name: _for(model, sizes) for name, model in MODELS.items()}
    found = cluster.run(_held, MODELS, own, world_size=int(sizes.ranks))
    for stage, counts in found:
        expected = {
            name: float(rank_parameters(model, own[name], stage).total)
            for name, model in MODELS.items()
        }
        assert counts == expected
    assert {stage for stage, _ in found} == set(range(int(sizes.pipeline)))


def test_one_rank_holds_what_is_published_and_padding(cluster) -> None:
    sizes = dict.fromkeys(MODELS, ParallelSizes())
    ((_, counts),) = cluster.run(_held, MODELS, sizes, world_size=1)
    for name, model in MODELS.items():
        padding = (model.padded_vocab(1) - model.vocab) * model.net.hidden
        assert counts[name] == model.parameters + padding * (1 if model.tied else 2)


def test_a_description_that_is_off_by_one_vector_is_caught(cluster) -> None:
    ((_, counts),) = cluster.run(
        _held, {"x": MODELS["Qwen3"]}, {"x": ParallelSizes()}, world_size=1
    )
    wrong = gpt(qk_norm=False)
    assert counts["x"] != float(rank_parameters(wrong, ParallelSizes(), 0).total)


def _for(model: LanguageModel, sizes: ParallelSizes) -> ParallelSizes:
    return sizes if model.net.moe is not None else replace(sizes, expert=1)


def _held(
    models: dict[str, LanguageModel], sizes: dict[str, ParallelSizes]
) -> tuple[int, dict[str, float]]:
    """Build models on a rank; return its stage, and the parameters that it holds of each."""
    stage, counts = 0, {}
    for own in dict.fromkeys(sizes.values()):
        with model_parallel(
            own.tensor, own.pipeline, expert_model_parallel_size=own.expert,
            expert_tensor_parallel_size=1,
        ) as state:  # fmt: skip
            stage = state.get_pipeline_model_parallel_rank()
            for name, model in models.items():
                if sizes[name] == own:
                    counts[name] = _count(build_gpt(model, own, stage), int(own.tensor))
    return stage, counts


def _count(built: Any, tensor: int) -> float:
    """Return parameters; the correction of router scores is one, though Megatron updates it itself.

    Compressions of latent attention are whole on every rank with Transformer Engine ("duplicated"
    in `MLASelfAttention`); Megatron's own linear layers, which run here, are cut and gathered.
    """
    found = sum(b.numel() for name, b in built.named_buffers() if name.endswith("expert_bias"))
    for name, weight in built.named_parameters():
        found += weight.numel() * (tensor if "_down_proj.weight" in name else 1)
    return float(found)


def build_gpt(
    model: LanguageModel, sizes: ParallelSizes, stage: int, sequence_parallel: bool = False
) -> Any:
    """Return Megatron's model on this rank, inside `model_parallel` of the sizes.

    Args:
        model: description.
        sizes: of the groups.
        stage: of the pipeline.
        sequence_parallel: the norms are torch's own, because Megatron's local ones refuse it.
    """
    import torch
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.identity_op import IdentityOp

    from mimokit.engine.models.language import TiedGPTModel as Gpt

    config = _config(model, sizes, sequence_parallel)
    block = get_gpt_decoder_block_spec(
        config,
        use_transformer_engine=False,
        normalization="RMSNorm" if model.net.norm == "RMSNorm" else None,
        qk_l2_norm=False,
        pp_rank=stage,
    )
    attention = model.net.attention
    if isinstance(attention, LatentAttention):
        # Its core has no parameters, and is Transformer Engine's alone.
        for layer in block.layer_specs:
            parts = layer.submodules.self_attention.submodules
            parts.core_attention = torch.nn.Identity
            if not attention.q_rank:  # 0.16.1 builds no norm then; 0.19.2 asks for none
                parts.q_layernorm = IdentityOp
    if sequence_parallel:
        block.layer_norm = _Norm
        for layer in block.layer_specs:
            layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = _Norm
    # Megatron takes Transformer Engine to be there, and then asks for its classes.
    with mock.patch.object(multi_latent_attention, "HAVE_TE", False), _plain_projections():
        return Gpt(
            config=config,
            transformer_layer_spec=block,
            vocab_size=model.padded_vocab(int(sizes.tensor)),
            max_sequence_length=model.positions or 32,
            position_embedding_type="learned_absolute" if model.positions else "rope",
            share_embeddings_and_output_weights=model.tied,
            pre_process=stage == 0,
            post_process=stage == int(sizes.pipeline) - 1,
        )


@contextmanager
def _plain_projections() -> Iterator[None]:
    """Keep the projections of a spec, where 0.19.2 wants some with a norm inside."""
    try:
        from megatron.core.transformer.mla_qk_norm_config import QKNormConfigResolver
    except ImportError:  # 0.16.1
        yield
        return
    with mock.patch.object(
        QKNormConfigResolver, "_mla_fused_linear_or_default", lambda self, linear, name: linear
    ):
        yield


def _config(model: LanguageModel, sizes: ParallelSizes, sequence_parallel: bool) -> Any:
    import torch
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig

    net, moe, attention = model.net, model.net.moe, model.net.attention
    options: dict[str, Any] = {}
    if moe is not None:
        sparse = net.layers - moe.dense_layers
        options |= {
            "num_moe_experts": moe.experts,
            "moe_router_topk": moe.top_k,
            "moe_ffn_hidden_size": moe.ffn,
            "moe_layer_freq": [0] * moe.dense_layers + [1] * sparse,
            "moe_shared_expert_intermediate_size": moe.shared_ffn or None,
            "moe_shared_expert_gate": moe.shared_gate,
            "moe_router_enable_expert_bias": moe.router_bias,
            "moe_router_score_function": "sigmoid" if moe.router_bias else "softmax",
        }
    kind = TransformerConfig
    if isinstance(attention, LatentAttention):
        kind = MLATransformerConfig
        options |= {
            "multi_latent_attention": True,
            "q_lora_rank": attention.q_rank or None,
            "kv_lora_rank": attention.kv_rank,
            "qk_head_dim": attention.nope_dim,
            "qk_pos_emb_head_dim": attention.rope_dim,
            "v_head_dim": attention.v_dim,
            "qk_layernorm": True,
        }
    else:
        options |= {"kv_channels": net.head_dim, "qk_layernorm": net.qk_norm}
    return kind(
        num_layers=net.layers, hidden_size=net.hidden, num_attention_heads=net.heads,
        num_query_groups=net.kv_heads, ffn_hidden_size=net.ffn, gated_linear_unit=net.gated,
        activation_func=torch.nn.functional.silu if net.gated else torch.nn.functional.gelu,
        normalization="RMSNorm" if net.norm == "RMSNorm" else "LayerNorm",
        add_bias_linear=net.ffn_bias, add_qkv_bias=net.qkv_bias and not net.ffn_bias,
        tensor_model_parallel_size=int(sizes.tensor), sequence_parallel=sequence_parallel,
        pipeline_model_parallel_size=int(sizes.pipeline),
        expert_model_parallel_size=int(sizes.expert), expert_tensor_parallel_size=1,
        pipeline_dtype=torch.float32, transformer_impl="local", use_cpu_initialization=True,
        bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        gradient_accumulation_fusion=False, **options,
    )  # fmt: skip


class _Norm:
    """Builds torch's own norm."""

    def __new__(cls, config: Any, hidden_size: int, eps: float, **_: Any) -> Any:
        import torch

        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        return kind(hidden_size, eps=eps)
