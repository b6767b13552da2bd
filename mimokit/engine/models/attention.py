"""The causal mask, and self-attention with fewer groups of queries than tensor-parallel ranks."""

from __future__ import annotations

from typing import Any

import torch

from mimokit.engine.megatron import SelfAttention, tensor_parallel


def causal_mask(tokens: int, device: torch.device) -> torch.Tensor:
    """Return [1, 1, tokens, tokens], True where attention is forbidden."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(1)[None, None]


class GroupedSelfAttention(SelfAttention):  # type: ignore[misc]
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
        mixed = tensor_parallel.all_gather_last_dim_from_tensor_parallel_region(
            mixed, self.pg_collection.tp
        )
        sharing = ranks // groups
        group, place = divmod(self.pg_collection.tp.rank(), sharing)
        width = self.hidden_size_per_attention_head
        heads = self.config.num_attention_heads // groups
        mine = mixed.unflatten(-1, (groups, heads + 2, width))[:, :, group]
        share = heads // sharing
        query = mine[:, :, place * share : (place + 1) * share]
        return query, mine[:, :, heads : heads + 1], mine[:, :, heads + 1 :]
