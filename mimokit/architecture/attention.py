"""The attention of a layer: of groups of queries, or latent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mimokit.architecture.layer_work.saved_tensor import SavedTensor
from mimokit.architecture.tensor_rows import (
    KEYS,
    NORMED,
    QUERIES,
    Place,
    Tensors,
    cut_outputs,
    norm,
    uncut,
)
from mimokit.config.meaning import NetworkMeanings
from mimokit.config.sizes import ParallelSizes

if TYPE_CHECKING:
    from mimokit.architecture.transformer import Transformer


@dataclass(frozen=True)
class GroupedAttention:
    """Attention of heads that share keys and values in groups; its numbers are the network's."""

    def head_dims(self, net: Transformer) -> tuple[int, int]:
        """Return the dimensions of a head's query and key, and those of its value."""
        return net.head_dim, net.head_dim

    def rows(self, net: Transformer, name: str, place: Place) -> Tensors:
        """Yield one matrix, and norms of heads."""
        # Rows of `linear_qkv` are ordered by query group (its queries, its key, its value), so that
        # equal shares of rows are whole groups as long as the ranks divide them.
        query, key = net.heads * net.head_dim, net.kv_heads * net.head_dim
        bias = query + (1 + net.key_bias) * key if net.qkv_bias else None
        shape = query + 2 * key, net.hidden
        yield from cut_outputs(f"{name}linear_qkv", place, shape, bias, of=NORMED)
        if net.qk_norm:
            for kind in ("q", "k"):
                yield uncut(f"{name}{kind}_layernorm.weight", place, net.head_dim)

    def saved(self, net: Transformer, sizes: ParallelSizes) -> Iterator[SavedTensor]:
        """Yield queries, keys, values and the output of the core."""
        numbers = 2 * (net.heads + net.kv_heads) * net.head_dim
        yield SavedTensor("attention", numbers / sizes.tensor)

    def more_calls(self, net: Transformer, sizes: ParallelSizes, trains: bool) -> tuple[int, int]:
        """Return collectives of both passes that `layer_collectives` does not count: of biases."""
        of_biases = net.qkv_bias and not net.key_bias and sizes.tensor > net.kv_heads
        return int(of_biases), int(of_biases and trains)


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

    Attributes:
        q_rank: width of the compressed query; 0 for a query that is not compressed.
        nope_dim: dimensions of a head's query and key without positions.
        rope_dim: dimensions of a head's query and key with rotary positions.
        v_dim: dimensions of a head's value.
    """

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    def head_dims(self, net: Transformer) -> tuple[int, int]:
        """Return the dimensions of a head's query and key, and those of its value."""
        return self.nope_dim + self.rope_dim, self.v_dim

    def rows(self, net: Transformer, name: str, place: Place) -> Tensors:
        """Yield its matrices: compressions are whole, ranks share the heads."""
        query, both = net.heads * net.qk_dim, net.heads * (self.nope_dim + self.v_dim)
        if self.q_rank:
            down = f"{name}linear_q_down_proj.weight"
            yield uncut(down, place, self.q_rank, net.hidden, of=NORMED)
            yield from norm(f"{name}q_layernorm", net.norm, self.q_rank, place)
            up = f"{name}linear_q_up_proj"
            yield from cut_outputs(up, place, (query, self.q_rank), None, of=QUERIES)
        else:
            whole = f"{name}linear_q_proj"
            yield from cut_outputs(whole, place, (query, net.hidden), None, of=NORMED)
        width, down = self.kv_rank + self.rope_dim, f"{name}linear_kv_down_proj.weight"
        yield uncut(down, place, width, net.hidden, of=NORMED)
        yield from norm(f"{name}kv_layernorm", net.norm, self.kv_rank, place)
        up = f"{name}linear_kv_up_proj"
        yield from cut_outputs(up, place, (both, self.kv_rank), None, of=KEYS)

    def saved(self, net: Transformer, sizes: ParallelSizes) -> Iterator[SavedTensor]:
        """Yield queries, keys and values, and what they are made of."""
        query, value = net.heads * net.qk_dim / sizes.tensor, net.heads * net.v_dim / sizes.tensor
        compressed = self.q_rank + self.kv_rank + self.rope_dim
        yield SavedTensor("attention", 2 * query + value, again=frozenset({"mla_up_proj"}))
        yield SavedTensor("attention", value + 2 * compressed)

    def more_calls(self, net: Transformer, sizes: ParallelSizes, trains: bool) -> tuple[int, int]:
        """Return those of three tensors that heads are made of, where other attention has one.

        They are compressed queries (hidden states, if these are not compressed), compressed keys
        and values, and the rotary key that all heads share. Backward, the inputs of two matrices
        are gathered again; no matrix takes the rotary key.
        """
        return (2, 2 + int(trains)) if sizes.sequence_parallel else (0, 2)


Attention = GroupedAttention | LatentAttention
"""What a layer has in front of its attention's output matrix, which all kinds have alike."""
GROUPED = GroupedAttention()
FREE_WIDTHS = (
    "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
    "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size",
)  # fmt: skip
"""Fields of widths inside of attention and experts, to which no other width is tied."""


def attention_of_config(size: NetworkMeanings) -> Attention:
    """Return the attention of a network in a config."""
    if not size.latent:
        return GROUPED
    return LatentAttention(size.q_rank, size.kv_rank, size.nope_dim, size.rope_dim, size.v_dim)
