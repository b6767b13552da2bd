"""Matrix products of one layer: operations, and the numbers they read and write."""

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
        weights: parameters that the token visits.
        width: narrower side of the matrices.
        inputs: numbers read.
        outputs: numbers written, always in 16 bits.
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
    """Return the seconds of a layer's linear layers in one forward pass on one rank.

    A product reads a tile before it multiplies and writes the tile afterwards, and no other tile
    multiplies meanwhile. The seconds of reading and writing are therefore added. They matter for
    narrow experts, which have few operations per number, and hardly for wide layers.
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
    """Return the projections around the attention core; latent attention has two steps."""
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
    """Return the products of a feed-forward layer that a token visits `visits` times.

    Args:
        net: the layers.
        width: inner width.
        visits: experts per token.
        t: number of ranks that the matrices are sharded over.
        shared_by: number of ranks that the tokens are sharded over.
    """
    inner, inward = width / t, _copies(net) - 1
    each = visits / shared_by
    return Product(
        weights=each * _copies(net) * net.hidden * inner,
        width=np.minimum(net.hidden, inner),
        inputs=each * (net.hidden + inner),
        outputs=each * (inward * inner + net.hidden),
    )
