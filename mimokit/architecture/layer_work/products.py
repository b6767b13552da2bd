"""Multiplications of a layer's forward pass: its matrices, and the scores of attention.

A backward pass has two products for each of them: one for the gradient of the input, one for that
of the weights (or of the other factor).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mimokit.architecture.parallel_sizes import Numbers, ParallelSizes
from mimokit.architecture.transformer import LatentAttention, MixtureOfExperts, Transformer

NORMED = "normalized input of attention"
QUERIES, KEYS = "compressed query", "compressed key and value"
CORE = "output of the attention core"
NORMED_AGAIN = "normalized input of the feed-forward layer"
INNER = "output of the activation function"
ROUTED, ROUTED_INNER = "token of an expert", "output of an expert's activation function"
ROUTER = "input of the router"


@dataclass(frozen=True)
class MatrixProduct:
    """The product of every token with one matrix, on one rank.

    Attributes:
        of: what is multiplied; products of the same tensor read it once.
        rows: rows per token of the rank; less than 1 if ranks share the tokens.
        bias: entries that are added to a row of the result before the next operation. The biases
            of matrices that are cut along their inputs are added later, with the residual.
    """

    of: str
    inputs: Numbers
    outputs: Numbers
    rows: Numbers = 1
    bias: Numbers = 0

    @property
    def weights(self) -> Numbers:
        """Multiplications per token: the entries of the matrix that it visits."""
        return self.rows * self.inputs * self.outputs

    @property
    def width(self) -> Numbers:
        """The narrower side of the matrix."""
        return np.minimum(self.inputs, self.outputs)


def layer_products(
    net: Transformer, moe: MixtureOfExperts | None, sizes: ParallelSizes
) -> tuple[MatrixProduct, ...]:
    """Return the products of a layer on one rank."""
    products = [*(_attention(net, sizes) if net.mla is None else _latent(net, net.mla, sizes))]
    products.append(MatrixProduct(CORE, net.heads * net.v_dim / sizes.tensor, net.hidden))
    width = net.ffn if moe is None else moe.shared_ffn
    if width:
        products += _feed_forward(net, width / sizes.tensor)
    if moe is not None:
        # Experts are not cut by tensor parallelism; its ranks share the tokens instead.
        into, back = _feed_forward(net, moe.ffn)
        each = moe.top_k / sizes.tensor
        products.append(MatrixProduct(ROUTED, into.inputs, into.outputs, each))
        products.append(MatrixProduct(ROUTED_INNER, back.inputs, back.outputs, each))
        scores = moe.experts + moe.shared_gate
        products.append(MatrixProduct(ROUTER, net.hidden, scores, 1 / sizes.tensor))
    return tuple(products)


def token_weights(net: Transformer) -> float:
    """Return the multiplications of one token with the matrices of all layers."""
    weights = net.dense_layers * layer_weights(net, None)
    if net.moe is not None:
        weights += (net.layers - net.dense_layers) * layer_weights(net, net.moe)
    return weights


def score_work(net: Transformer, sizes: ParallelSizes, seen: Numbers) -> Numbers:
    """Return the multiplications per token of a layer's scores and values on one rank.

    Args:
        seen: tokens whose scores a token computes: `visible_tokens`, or without fusion the whole
            sequence, the masked ones too.
    """
    return net.heads * (net.qk_dim + net.v_dim) * seen / sizes.tensor


def visible_tokens(net: Transformer, seq: Numbers) -> Numbers:
    """Return the number of tokens that a token attends to, averaged over tokens and layers."""
    share = 0.5 if net.causal else 1.0
    windowed = len(net.windowed_layers) / net.layers
    return (1 - windowed) * share * seq + windowed * np.minimum(net.window, share * seq)


def layer_weights(net: Transformer, moe: MixtureOfExperts | None) -> float:
    """Return the multiplications of one token with the matrices of a layer."""
    return float(sum(product.weights for product in layer_products(net, moe, ParallelSizes())))


def _attention(net: Transformer, sizes: ParallelSizes) -> Iterator[MatrixProduct]:
    query, key = net.heads * net.head_dim, net.kv_heads * net.head_dim
    bias = net.qkv_bias * (query + (1 + net.key_bias) * key)
    yield MatrixProduct(
        NORMED, net.hidden, (query + 2 * key) / sizes.tensor, bias=bias / sizes.tensor
    )


def _latent(
    net: Transformer, mla: LatentAttention, sizes: ParallelSizes
) -> Iterator[MatrixProduct]:
    if mla.q_rank:
        yield MatrixProduct(NORMED, net.hidden, mla.q_rank)
    query = net.heads * net.qk_dim / sizes.tensor
    yield MatrixProduct(*((QUERIES, mla.q_rank) if mla.q_rank else (NORMED, net.hidden)), query)
    yield MatrixProduct(NORMED, net.hidden, mla.kv_rank + mla.rope_dim)
    yield MatrixProduct(KEYS, mla.kv_rank, net.heads * (mla.nope_dim + mla.v_dim) / sizes.tensor)


def _feed_forward(net: Transformer, inner: Numbers) -> tuple[MatrixProduct, MatrixProduct]:
    into = (2 if net.gated else 1) * inner
    return (
        MatrixProduct(NORMED_AGAIN, net.hidden, into, bias=net.ffn_bias * into),
        MatrixProduct(INNER, inner, net.hidden),
    )
