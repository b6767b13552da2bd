"""Matrix products of one layer: operations, and what their ends read and write."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes
from mimokit.architecture.parameters import dense_layer, expert_layer
from mimokit.architecture.transformer import MixtureOfExperts, Transformer
from mimokit.prediction.step_time.system import HALF, System


@dataclass(frozen=True)
class Product:
    """Matrix products of one kind, for one token on one rank.

    Attributes:
        weights: that the token visits.
        width: narrower side of the matrices.
        inputs: numbers read.
        outputs: numbers written, 16-bit whatever the products' precision.
    """

    weights: Numbers
    width: Numbers
    inputs: Numbers
    outputs: Numbers


def product_seconds(
    net: Transformer,
    moe: MixtureOfExperts | None,
    sizes: ParallelSizes,
    tokens: Numbers,
    system: System,
) -> Numbers:
    """Return seconds of a layer's linear layers in one forward pass on one rank.

    A product fills the pipeline of a tile's operations at its beginning and writes the tile at its
    end, while no other tile multiplies in its place: reading and writing come on top. Narrow
    experts have few operations per number and take longer by it, wide layers hardly do.
    """
    found = products(net, moe, sizes)
    operations = sum(
        system.matrix_seconds(2 * tokens * one.weights, width=one.width) for one in found
    )
    moved = sum(system.kept_bytes * one.inputs + HALF * one.outputs for one in found)
    return operations + system.memory_seconds(tokens * moved)


def products(net: Transformer, moe: MixtureOfExperts | None, sizes: ParallelSizes) -> list[Product]:
    """Return the matrix products of a layer on one rank, by kind."""
    t = sizes.tensor
    layer = dense_layer(net) if moe is None else expert_layer(net, moe)
    width = net.ffn if moe is None else moe.shared_ffn
    found = _attention(net, layer.sharded - _copies(net) * net.hidden * width, t)
    if width:
        found.append(_feed_forward(net, width, 1, t))
    if moe is not None:
        found.append(_feed_forward(net, moe.ffn, moe.top_k, 1, shared_by=t))
        found.append(Product(net.hidden * moe.experts / t, moe.experts, net.hidden / t, 0))
    return found


def _copies(net: Transformer) -> int:
    return 3 if net.gated else 2


def _attention(net: Transformer, weights: int, t: Numbers) -> list[Product]:
    """Return the projections before and after the attention core; latent ones in two steps."""
    core = net.heads * net.qk_dim + net.kv_heads * (net.qk_dim + net.v_dim)
    back = net.heads * net.v_dim / t
    narrow = np.minimum(net.hidden, back)
    if net.mla is None:
        return [Product(weights / t, narrow, net.hidden + back, core / t + net.hidden)]
    latent = net.mla.q_rank + net.mla.kv_rank
    compressed = latent + net.mla.rope_dim
    return [
        Product(weights / t, narrow, latent + back, core / t + net.hidden),
        Product(net.hidden * compressed, compressed, net.hidden, compressed),
    ]


def _feed_forward(
    net: Transformer, width: int, visits: int, t: Numbers, shared_by: Numbers = 1
) -> Product:
    """Return the products of a feed-forward layer that a token visits so many times.

    Args:
        net: the layers.
        width: inside.
        visits: experts per token.
        t: ranks that cut the matrices.
        shared_by: ranks that share the tokens.
    """
    inner, inward = width / t, _copies(net) - 1
    each = visits / shared_by
    return Product(
        weights=each * _copies(net) * net.hidden * inner,
        width=np.minimum(net.hidden, inner),
        inputs=each * (net.hidden + inner),
        outputs=each * (inward * inner + net.hidden),
    )
