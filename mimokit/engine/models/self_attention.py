"""The attention of a layer, of groups of queries or latent: its spec, and Megatron's options of it.

Latent attention is that of DeepSeek-V2 (arXiv 2405.04434), here also on tensor-parallel ranks
without CUDA.
"""

import math
from dataclasses import replace
from typing import Any

import torch

from mimokit.config import ModuleArchitecture, RopeScaling
from mimokit.engine import megatron
from mimokit.engine.megatron.transformer_engine import (
    MLASelfAttention,
    MLASelfAttentionSubmodules,
    MLATransformerConfig,
    WholeLinear,
)
from mimokit.engine.models.attention import SequenceAttention, window_options
from mimokit.engine.models.fusions import core_attention
from mimokit.engine.models.key_bias import LinearWithoutKeyBias
from mimokit.engine.parallel.context import for_all_ranks
from mimokit.engine.parallel.sequence import HeadNorm, SliceNorm
from mimokit.engine.rotary import RotaryPositions
from mimokit.planning.execution import ModuleExecution


class GroupedSelfAttention(megatron.SelfAttention):  # type: ignore[misc]
    """Megatron's `SelfAttention`, which takes the groups of this module in every case.

    With fewer groups than ranks Megatron cuts the fused matrix of query, key and value into equal
    rows, gathers what it gives, and lets each rank take its group and its share of the group's
    heads. megatron-core 0.16.1 asks the global parallel state for group and rank there.
    """

    def get_query_key_value_tensors(
        self, hidden_states: torch.Tensor, *args: Any, **options: Any
    ) -> Any:
        """Return query, key and value, each [tokens, samples, heads of this rank, width]."""
        groups, ranks = self.config.num_query_groups, self.world_size
        if groups >= ranks:
            return super().get_query_key_value_tensors(hidden_states, *args, **options)
        mixed, _ = self.linear_qkv(hidden_states)
        mixed = megatron.tensor_parallel.all_gather_last_dim_from_tensor_parallel_region(
            mixed, self.pg_collection.tp
        )
        sharing = ranks // groups
        group, place = divmod(self.pg_collection.tp.rank(), sharing)
        width = self.hidden_size_per_attention_head
        heads = self.config.num_attention_heads // groups
        of_group = mixed.unflatten(-1, (groups, heads + 2, width))[:, :, group]
        share = heads // sharing
        query = of_group[:, :, place * share : (place + 1) * share]
        key = of_group[:, :, heads : heads + 1]
        if self.config.qk_layernorm:
            query, key = self.q_layernorm(query), self.k_layernorm(key)
        return query, key, of_group[:, :, heads + 1 :]


class LatentSelfAttention(MLASelfAttention):  # type: ignore[misc]
    """Megatron's `MLASelfAttention`, of which every rank compresses whole queries, keys and values.

    All heads share one rotary key, of whose gradient a tensor-parallel rank computes the part of
    its heads; Megatron's own adds the parts up with sequence parallelism alone.
    """

    def __init__(
        self,
        config: megatron.TransformerConfig,
        submodules: MLASelfAttentionSubmodules,
        *args: Any,
        pg_collection: megatron.ProcessGroupCollection,
        **options: Any,
    ) -> None:
        if config.q_lora_rank is None:  # the only matrix that is not told its group
            query = _with(megatron.ColumnParallelLinear, tp_group=pg_collection.tp)
            submodules = replace(submodules, linear_q_proj=query)
        super().__init__(config, submodules, *args, pg_collection=pg_collection, **options)
        if not config.sequence_parallel:
            self.linear_kv_down_proj.register_forward_hook(self._share_key)

    def _resolve_qk_norm_config(self, submodules: MLASelfAttentionSubmodules) -> dict[str, Any]:
        """Return the classes of the spec, which 0.19 would choose by those of other backends."""
        return dict(vars(submodules))

    def _share_key(
        self, layer: object, given: object, output: tuple[torch.Tensor, None]
    ) -> tuple[torch.Tensor, None]:
        widths = [self.config.kv_lora_rank, self.config.qk_pos_emb_head_dim]
        compressed, key = torch.split(output[0], widths, dim=-1)
        key = for_all_ranks(key, self.pg_collection.tp)
        return torch.cat((compressed, key), dim=-1), None


def _with(linear: type, **fixed: Any) -> type:
    def build(self: Any, *args: Any, **options: Any) -> None:
        linear.__init__(self, *args, **{**options, **fixed})  # type: ignore[misc]

    return type(linear.__name__, (linear,), {"__init__": build})


def attention_spec(
    local: megatron.ModuleSpec,
    network: ModuleArchitecture,
    execution: ModuleExecution,
    mask_type: megatron.AttnMaskType,
) -> megatron.ModuleSpec:
    """Return the spec of the attention of a network.

    A module with whole samples on every rank has Megatron's own attention, as has the oracle, so
    that a check of a layout compares the two. Half precision on a GPU has kernels instead that do
    not keep the scores of all pairs of positions. Megatron's windows are causal and read no mask.

    Args:
        local: that of Megatron's local layer, which is changed.
    """
    if network.latent:
        parts = _latent_parts(network)
        spec = megatron.ModuleSpec(module=LatentSelfAttention, submodules=parts)
    else:
        spec, parts = local, local.submodules
        spec.module = GroupedSelfAttention
        _describe_grouped(parts, network)
        core = core_attention(execution, network, mask_type)
        parts.core_attention = core or parts.core_attention
    if network.output_bias != network.ffn_bias:
        parts.linear_proj = _with(parts.linear_proj, bias=network.output_bias)
    spec.params = {"attn_mask_type": mask_type}
    return spec


def _describe_grouped(parts: Any, network: ModuleArchitecture) -> None:
    if network.qk_layernorm:
        parts.q_layernorm = parts.k_layernorm = HeadNorm
    if network.ffn_bias and not network.qkv_bias:
        parts.linear_qkv = _with(parts.linear_qkv, bias=False)
    elif network.qkv_bias and not network.key_bias:
        parts.linear_qkv = LinearWithoutKeyBias


def _latent_parts(network: ModuleArchitecture) -> MLASelfAttentionSubmodules:
    return MLASelfAttentionSubmodules(
        linear_q_down_proj=WholeLinear,
        linear_q_up_proj=megatron.ColumnParallelLinear,
        linear_kv_down_proj=WholeLinear,
        linear_kv_up_proj=megatron.ColumnParallelLinear,
        core_attention=SequenceAttention,
        linear_proj=megatron.RowParallelLinear,
        q_layernorm=None if network.q_lora_rank is None else SliceNorm,
        kv_layernorm=SliceNorm,
    )


def attention_config(network: ModuleArchitecture, **others: Any) -> megatron.TransformerConfig:
    """Return Megatron's configuration of the layers of a network; `others` are other options."""
    others |= window_options(network)
    if network.latent:
        return MLATransformerConfig(**others, **_latent_options(network))
    config, growth = megatron.TransformerConfig(**others), RotaryPositions.of(network).growth
    if growth != 1:
        # Megatron's attention grows what turns by 1 + 0.1 mscale log(factor), of fields that only
        # the other configuration has.
        config.yarn_rotary_scaling_factor = math.exp(10)
        config.yarn_mscale, config.yarn_mscale_all_dim = growth - 1, 0.0
    return config


def _latent_options(network: ModuleArchitecture) -> dict[str, Any]:
    return {
        "multi_latent_attention": True,
        "q_lora_rank": network.q_lora_rank,
        "kv_lora_rank": network.kv_lora_rank,
        "qk_head_dim": network.qk_head_dim,
        "qk_pos_emb_head_dim": network.qk_pos_emb_head_dim,
        "v_head_dim": network.v_head_dim,
        "rotary_base": network.rope_theta,
        **_scaling(network.rope_scaling),
    }


def _scaling(scaling: RopeScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"rope_type": "rope", "rotary_scaling_factor": 1.0}
    return {
        "rope_type": "yarn",
        "rotary_scaling_factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "mscale": 1.0 if scaling.mscale is None else scaling.mscale,
        "mscale_all_dim": scaling.mscale_all_dim or 0.0,
    }
