"""Multi-latent attention (DeepSeek-V2, arXiv 2405.04434) on tensor-parallel ranks without CUDA."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from mimokit.config import ModuleArchitecture, RopeScaling
from mimokit.engine import megatron
from mimokit.engine.models.attention import SequenceAttention
from mimokit.engine.parallel.context import for_all_ranks
from mimokit.engine.parallel.sequence import SliceNorm


class LatentSelfAttention(megatron.MLASelfAttention):  # type: ignore[misc]
    """Megatron's `MLASelfAttention`, of which every rank compresses whole queries, keys and values.

    All heads share one rotary key, of whose gradient a tensor-parallel rank computes the part of
    its heads; Megatron's own adds the parts up with sequence parallelism alone.
    """

    def __init__(
        self,
        config: megatron.TransformerConfig,
        submodules: megatron.MLASelfAttentionSubmodules,
        *args: Any,
        pg_collection: megatron.ProcessGroupCollection,
        **options: Any,
    ) -> None:
        if config.q_lora_rank is None:  # the only matrix that is not told its group
            query = _on_group(megatron.ColumnParallelLinear, pg_collection.tp)
            submodules = replace(submodules, linear_q_proj=query)
        super().__init__(config, submodules, *args, pg_collection=pg_collection, **options)
        if not config.sequence_parallel:
            self.linear_kv_down_proj.register_forward_hook(self._share_key)

    def _resolve_qk_norm_config(
        self, submodules: megatron.MLASelfAttentionSubmodules
    ) -> dict[str, Any]:
        """Return the classes of the spec, which 0.19 would choose by those of other backends."""
        return dict(vars(submodules))

    def _share_key(
        self, layer: object, given: object, output: tuple[torch.Tensor, None]
    ) -> tuple[torch.Tensor, None]:
        widths = [self.config.kv_lora_rank, self.config.qk_pos_emb_head_dim]
        compressed, key = torch.split(output[0], widths, dim=-1)
        key = for_all_ranks(key, self.pg_collection.tp)
        return torch.cat((compressed, key), dim=-1), None


def _on_group(linear: type, group: dist.ProcessGroup) -> type:
    def build(self: Any, *args: Any, **options: Any) -> None:
        linear.__init__(self, *args, **{**options, "tp_group": group})  # type: ignore[misc]

    return type(linear.__name__, (linear,), {"__init__": build})


def latent_attention_spec(
    network: ModuleArchitecture, mask_type: megatron.AttnMaskType
) -> megatron.ModuleSpec:
    """Return the spec of multi-latent attention; its norms are those of the layers."""
    compressed = network.q_lora_rank is not None
    return megatron.ModuleSpec(
        module=LatentSelfAttention,
        params={"attn_mask_type": mask_type},
        submodules=megatron.MLASelfAttentionSubmodules(
            linear_q_down_proj=megatron.WholeLinear,
            linear_q_up_proj=megatron.ColumnParallelLinear,
            linear_kv_down_proj=megatron.WholeLinear,
            linear_kv_up_proj=megatron.ColumnParallelLinear,
            core_attention=SequenceAttention,
            linear_proj=megatron.RowParallelLinear,
            q_layernorm=SliceNorm if compressed else None,
            kv_layernorm=SliceNorm,
        ),
    )


def latent_options(network: ModuleArchitecture) -> dict[str, Any]:
    """Return what of Megatron's configuration concerns latent attention."""
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
