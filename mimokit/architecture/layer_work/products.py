"""Multiplications of a layer's forward pass: its matrices, and the scores of attention.

A backward pass has two products for each of them: one for the gradient of the input, one for that
of the weights (or of the other factor).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mimokit.architecture.feed_forward import MixtureOfExperts
from mimokit.architecture.tensor_cut import TensorCut
from mimokit.architecture.tensor_rows import ROUTER
from mimokit.architecture.transformer import Transformer, layer_rows
from mimokit.config.sizes import Numbers, ParallelSizes


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
    """Return the products of a layer on one rank.

    Experts and their router are not cut by tensor parallelism; its ranks share the tokens instead.
    """
    t, products = sizes.tensor, []
    for of, cut, bias in _matrices(net, moe):
        outputs, inputs = cut.whole
        if cut.expert is not None and moe is not None:
            products.append(MatrixProduct(of, inputs, outputs, moe.top_k / t))
        elif cut.dimension == 0:
            products.append(MatrixProduct(of, inputs, outputs / t, bias=bias / t))
        elif cut.dimension == 1:
            products.append(MatrixProduct(of, inputs / t, outputs))
        else:
            products.append(MatrixProduct(of, inputs, outputs, 1 / t if of == ROUTER else 1))
    return tuple(products)


@lru_cache(maxsize=256)
def _matrices(
    net: Transformer, moe: MixtureOfExperts | None
) -> tuple[tuple[str, TensorCut, int], ...]:
    """Return what multiplies a matrix of a layer, the matrix, and the numbers of its bias."""
    matrices: list[tuple[str, TensorCut, int]] = []
    gates = 0
    for row in layer_rows(net, moe, experts=1):
        if row.of == ROUTER:
            gates += row.cut.whole[0]
        elif row.of is not None and len(row.cut.whole) == 2:
            matrices.append((row.of, row.cut, 0))
        elif row.of is not None:
            of, cut, _ = matrices.pop()
            matrices.append((of, cut, row.cut.whole[0]))
    router = [(ROUTER, TensorCut((gates, net.hidden)), 0)] if gates else []
    return (*matrices, *router)


@lru_cache(maxsize=256)
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
    whole = net.full_layers / net.layers
    return whole * share * seq + (1 - whole) * np.minimum(net.window, share * seq)


def layer_weights(net: Transformer, moe: MixtureOfExperts | None) -> float:
    """Return the multiplications of one token with the matrices of a layer."""
    return float(sum(product.weights for product in layer_products(net, moe, ParallelSizes())))
