"""Counts that the CPU time of a part of a model depends on: layers, numbers written, operations.

The time of a piece is the sum of these counts, each times a constant (`CoreCosts`). At widths that
run on a laptop, the fixed cost of a layer exceeds the cost of its arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mimokit.architecture.flops import forward_flops
from mimokit.architecture.layer_work.products import (
    NORMED,
    NORMED_AGAIN,
    layer_products,
    score_work,
)
from mimokit.architecture.modules import EncoderBranch, LanguageModel
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.architecture.transformer import Transformer

WHOLE_PASSES = 8
"""Numbers written per token and hidden unit by norms, residuals and biases of a layer's forward."""
FEED_FORWARD_PASSES = 3
"""Numbers written per output of the matrix into a feed-forward layer or projector: bias, GELU, its
product."""
PRODUCT_PASSES: Mapping[str, int] = {NORMED: 4, NORMED_AGAIN: FEED_FORWARD_PASSES}
"""What a matrix multiplies -> numbers written per output: of queries, keys and values for bias,
split, rotation and copies."""
SCORE_PASSES = 5
"""Numbers written per attention score: product, scale, mask, softmax, copy."""
END_PASSES, LOGIT_PASSES = 4, 6
"""Numbers written per hidden unit of an embedding, and per logit of the loss."""
NUMBER_BYTES = 4
"""All numbers are fp32 in a process without a GPU."""


@dataclass(frozen=True)
class Amounts:
    """Counts that the CPU time of a forward or backward pass depends on.

    Attributes:
        ends: 1 for the cost of a pass outside its layers, even in a stage without either end of
            the module: calling Megatron's modules and autograd takes longer than embedding a
            batch.
        elements: numbers written, forward.
        operations: of matrix products, forward.
    """

    ends: float = 0.0
    layers: float = 0.0
    elements: float = 0.0
    operations: float = 0.0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.ends + other.ends,
            self.layers + other.layers,
            self.elements + other.elements,
            self.operations + other.operations,
        )

    def times(self, factor: float) -> Amounts:
        """Return all counts times a factor."""
        return Amounts(*(factor * value for value in vars(self).values()))

    def terms(self) -> Mapping[str, float]:
        """Return the terms of a law."""
        return {
            "ends": self.ends,
            "layer": self.layers,
            "element": self.elements,
            "operation": self.operations,
        }


def layer_amounts(net: Transformer, tensor: int, sequences: float, length: float) -> Amounts:
    """Return the amounts of one dense layer on one rank.

    Args:
        tensor: number of ranks that the layer is sharded over.
        sequences: of a micro-batch on this rank.
        length: tokens of a sequence; attention is not fused, so masked scores are computed, too.
    """
    sizes, tokens = ParallelSizes(tensor, sequence_parallel=False), sequences * length
    products = layer_products(net, None, sizes)
    scores = tokens * length * net.heads / tensor
    written = WHOLE_PASSES * net.hidden + sum(
        PRODUCT_PASSES.get(product.of, 0) * float(product.outputs) for product in products
    )
    multiplied = float(sum(product.weights for product in products))
    return Amounts(
        layers=1,
        elements=tokens * written + SCORE_PASSES * scores,
        operations=2 * tokens * (multiplied + float(score_work(net, sizes, length))),
    )


def language_ends(language: LanguageModel, tensor: int, tokens: float) -> Amounts:
    """Return the amounts of embedding, logits and loss."""
    written = END_PASSES * language.net.hidden + LOGIT_PASSES * language.vocab / tensor
    operations = forward_flops(language, 1, tokens).last / tensor
    return Amounts(ends=1, elements=tokens * written, operations=operations)


def vision_ends(
    branch: EncoderBranch, tensor: int, images: float, positions: int, tokens: int
) -> Amounts:
    """Return the amounts of patch embedding and projector.

    Args:
        tensor: number of ranks that the projector is sharded over.
        images: of a micro-batch on this rank.
        positions: of an image in the layers.
        tokens: that an image becomes.
    """
    inner, outer = sum(branch.projector.widths[1:-1]), branch.projector.widths[-1]
    flops = forward_flops(branch, positions, images, tokens)
    projected = FEED_FORWARD_PASSES * inner / tensor + outer
    return Amounts(
        ends=1,
        elements=images * (END_PASSES * positions * branch.encoder.net.hidden + tokens * projected),
        operations=flops.first + flops.last / tensor,
    )
