"""A stack of transformer layers: its tensors, from which its parameters follow."""

from dataclasses import dataclass
from functools import lru_cache

from mimokit.architecture.attention import Attention
from mimokit.architecture.feed_forward import DENSE, MixtureOfExperts
from mimokit.architecture.tensor_rows import (
    CORE,
    Parameters,
    Place,
    Tensors,
    cut_inputs,
    norm,
    parameters_of,
)
from mimokit.config.meaning import Normalization


@dataclass(frozen=True)
class Transformer:
    """Equal layers, except that the first layers of a mixture of experts may be dense.

    Attributes:
        gated: SwiGLU with three matrices, otherwise two matrices around an activation.
        qkv_bias: biases of query and value; see `key_bias` for the key.
        key_bias: the key has a bias, too, if query and value have one.
        qk_norm: an RMSNorm over each head of query and key.
        window: tokens that most layers attend to at once; 0 for all.
        full_layers: layers that attend to all.
        dropout: share of the outputs of attention and feed-forward layer that are dropped.
        score_dropout: share of the attention probabilities that are dropped.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    norm: Normalization
    qkv_bias: bool
    key_bias: bool
    output_bias: bool
    ffn_bias: bool
    qk_norm: bool
    causal: bool
    window: int
    full_layers: int
    dropout: float
    score_dropout: float
    moe: MixtureOfExperts | None
    attention: Attention

    @property
    def qk_dim(self) -> int:
        """Dimensions of a head's query and key."""
        return self.attention.head_dims(self)[0]

    @property
    def v_dim(self) -> int:
        """Dimensions of a head's value."""
        return self.attention.head_dims(self)[1]

    @property
    def dense_layers(self) -> int:
        """Layers with an ordinary feed-forward layer."""
        return self.layers if self.moe is None else self.moe.dense_layers

    def rows(self, prefix: str = "") -> Tensors:
        """Yield the tensors of all layers."""
        for number in range(self.layers):
            mixed = self.moe is not None and number >= self.moe.dense_layers
            name = f"{prefix}decoder.layers.{number}."
            yield from layer_rows(self, self.moe if mixed else None, name, number)

    @property
    def parameters(self) -> int:
        """The parameters of all layers, without a norm after them."""
        mixed = (self.layers - self.dense_layers) * layer_parameters(self, self.moe).total
        return self.dense_layers * layer_parameters(self, None).total + mixed


def layer_rows(
    net: Transformer,
    moe: MixtureOfExperts | None,
    name: str = "",
    place: Place = 0,
    experts: int | None = None,
) -> Tensors:
    """Yield the tensors of a layer."""
    attention, part = f"{name}self_attention.", moe or DENSE
    yield from norm(f"{name}input_layernorm", net.norm, net.hidden, place)
    yield from net.attention.rows(net, attention, place)
    output = net.hidden, net.heads * net.v_dim
    yield from cut_inputs(f"{attention}linear_proj", place, output, net.output_bias, CORE)
    yield from norm(f"{name}pre_mlp_layernorm", net.norm, net.hidden, place)
    yield from part.rows(net, f"{name}mlp.", place, experts)


@lru_cache(maxsize=256)
def layer_parameters(net: Transformer, moe: MixtureOfExperts | None) -> Parameters:
    """Return the parameters of a layer; see `layer_rows`."""
    return parameters_of(layer_rows(net, moe, experts=1), 0 if moe is None else moe.top_k)
