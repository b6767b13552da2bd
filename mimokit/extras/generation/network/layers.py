"""The layers of a transformer on the ranks of a tensor parallel group.

Two all-reduces a layer: after the output projection of attention and after the second matrix of the
feed-forward layer. Where there are fewer key and value groups than ranks, Megatron cuts the fused
matrix of query, key and value inside a group, and its output is gathered. Keys and values of
earlier tokens are sharded over the ranks as the heads are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mimokit.architecture.transformer import Transformer
from mimokit.config import ModuleArchitecture
from mimokit.engine.activations import ACTIVATIONS
from mimokit.extras.generation.network.exchange import Group, all_gathered, rank_of, size_of, summed

Turns = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, as `turns` returns them."""


def turns(
    positions: torch.Tensor, each: torch.Tensor, dtype: torch.dtype, growth: float = 1.0
) -> Turns:
    """Return the cosines and sines of the angles of tokens at positions [batch, tokens].

    Both are [batch, tokens, 1, 1, width of a head], with equal halves; `RotaryPositions` has the
    frequencies `each` and the growth.
    """
    half = positions[..., None, None, None].float() * each
    angles = torch.cat((half, half), dim=-1)
    return (angles.cos() * growth).to(dtype), (angles.sin() * growth).to(dtype)


def rotated(heads: torch.Tensor, turned: Turns) -> torch.Tensor:
    """Return queries and keys with positions: [batch, tokens, groups, heads of a group, width]."""
    first, second = heads.chunk(2, dim=-1)
    cos, sin = turned
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


class KeyValueCache:
    """Keys and values of the layers of a rank: [2, layers, batch, groups, tokens, width of a head].

    The shape is without the first; dtype and device are those of `like`.
    """

    def __init__(self, shape: tuple[int, int, int, int, int], like: torch.Tensor) -> None:
        self.length = 0
        self._entries = like.new_zeros(2, *shape)

    def extended(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the new tokens of a layer and return all: [batch, groups, tokens, width]."""
        stop = self.length + keys.shape[2]
        both = self._entries[:, layer]
        both[0, :, :, self.length : stop] = keys
        both[1, :, :, self.length : stop] = values
        return both[0, :, :, :stop], both[1, :, :, :stop]

    def advance(self, tokens: int) -> None:
        """Count the new tokens, once all layers have them."""
        self.length += tokens


Parameters = Mapping[str, torch.Tensor]
"""Megatron's names -> the shard of this rank."""


@dataclass(frozen=True)
class Tokens:
    """What layers need to know of their tokens.

    Attributes:
        allowed: of each layer, which tokens attend to which, [batch, 1, new tokens, all tokens];
            None: all to all.
        turned: rotary positions of the new tokens, if there are some.
    """

    allowed: Sequence[torch.Tensor | None]
    turned: Turns | None = None


@dataclass(frozen=True)
class Layers:
    """The layers of a language model."""

    parameters: Parameters
    net: Transformer
    network: ModuleArchitecture
    group: Group

    @property
    def cached_groups(self) -> int:
        """Key and value groups in this rank's cache."""
        return max(1, self.net.kv_heads // size_of(self.group))

    def __call__(
        self, hidden: torch.Tensor, tokens: Tokens, cache: KeyValueCache | None
    ) -> torch.Tensor:
        """Return [batch, tokens, hidden]. Collective."""
        for number in range(self.net.layers):
            name = f"decoder.layers.{number}"
            normed = self.norm(hidden, f"{name}.input_layernorm")
            hidden = hidden + self._attention(normed, number, tokens, cache)
            normed = self.norm(hidden, f"{name}.pre_mlp_layernorm")
            hidden = hidden + self._feed_forward(normed, f"{name}.mlp")
        return hidden

    def norm(self, hidden: torch.Tensor, name: str) -> torch.Tensor:
        """Return RMSNorm or LayerNorm; the former computes in fp32."""
        weight, epsilon = self.parameters[f"{name}.weight"], self.network.epsilon
        if self.net.norm == "LayerNorm":
            bias = self.parameters[f"{name}.bias"]
            return F.layer_norm(hidden, weight.shape, weight, bias, epsilon)
        if hidden.dtype == torch.float32:
            return F.rms_norm(hidden, weight.shape, weight, epsilon)
        wide = hidden.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
        return weight * (wide * scale).to(hidden.dtype)

    def _column(self, hidden: torch.Tensor, name: str) -> torch.Tensor:
        bias = self.parameters.get(f"{name}.bias")
        return F.linear(hidden, self.parameters[f"{name}.weight"], bias)

    def _row(self, inner: torch.Tensor, name: str) -> torch.Tensor:
        """Return the outputs of a matrix whose columns are cut; the bias is added once."""
        made = summed(F.linear(inner, self.parameters[f"{name}.weight"]), self.group)
        bias = self.parameters.get(f"{name}.bias")
        return made if bias is None else made + bias

    def _feed_forward(self, hidden: torch.Tensor, name: str) -> torch.Tensor:
        inner = self._column(hidden, f"{name}.linear_fc1")
        gate, up = inner.chunk(2, dim=-1) if self.net.gated else (inner, None)
        inner = ACTIVATIONS[self.network.activation](gate)
        return self._row(inner if up is None else inner * up, f"{name}.linear_fc2")

    def _attention(
        self, hidden: torch.Tensor, number: int, tokens: Tokens, cache: KeyValueCache | None
    ) -> torch.Tensor:
        name = f"decoder.layers.{number}.self_attention"
        heads, value = self._heads(hidden, f"{name}.linear_qkv")
        if self.net.qk_norm:
            query = self.norm(heads[..., :-1, :], f"{name}.q_layernorm")
            key = self.norm(heads[..., -1:, :], f"{name}.k_layernorm")
            heads = torch.cat((query, key), dim=-2)
        if tokens.turned is not None:
            heads = rotated(heads, tokens.turned)
        query, key = heads[..., :-1, :], heads[..., -1, :].transpose(1, 2)
        value = value.transpose(1, 2)
        if cache is not None:
            key, value = cache.extended(number, key, value)
        mixed = _mixed(query, key, value, tokens.allowed[number])
        return self._row(mixed, f"{name}.linear_proj")

    def _heads(self, hidden: torch.Tensor, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the heads of this rank's groups: queries with their key behind them, and values.

        [batch, tokens, groups, queries + 1, width] and [batch, tokens, groups, width].
        """
        net, ranks, rank = self.net, size_of(self.group), rank_of(self.group)
        queries = net.heads // net.kv_heads
        fused = self._column(hidden, name)
        if ranks <= net.kv_heads:
            groups = fused.view(*fused.shape[:2], -1, queries + 2, net.head_dim)
            return groups[..., :-1, :], groups[..., -1, :]
        whole = all_gathered(fused, self.group).movedim(0, -2).flatten(-2)
        groups = whole.reshape(*whole.shape[:2], -1, queries + 2, net.head_dim)
        sharers = ranks // net.kv_heads
        group, first = groups[:, :, rank // sharers], rank % sharers * (queries // sharers)
        query = group[:, :, first : first + queries // sharers]
        return torch.cat((query, group[:, :, -2:-1]), dim=2)[:, :, None], group[:, :, -1:]


def _mixed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, allowed: torch.Tensor | None
) -> torch.Tensor:
    """Return the output of attention: [batch, new tokens, heads x width].

    A query is [batch, new tokens, groups, queries of a group, width]; key and value are
    [batch, groups, all tokens, width].
    """
    if query.shape[1] == 1:  # the queries of a group read its keys, as several tokens would
        mixed = F.scaled_dot_product_attention(query[:, 0], key, value, attn_mask=allowed)
        return mixed.flatten(1)[:, None]
    query = query.flatten(2, 3).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, enable_gqa=True)
    return mixed.transpose(1, 2).flatten(2)
