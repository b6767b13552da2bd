"""Counts that the CPU time of a part of a model depends on: layers, numbers written, operations.

The time of a piece is the sum of these counts, each times a constant (`CoreCosts`). At widths that
run on a laptop, the fixed cost of a layer exceeds the cost of its arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mimokit.architecture.tokens import image_geometry, tokens_per_item
from mimokit.config import ModuleArchitecture

WHOLE_PASSES = 8
"""Numbers written per token and hidden unit by norms, residuals and biases of a layer's forward."""
QUERY_PASSES = 4
"""Numbers written per query, key and value: bias, split, rotation, copies."""
FEED_FORWARD_PASSES = 3
"""Numbers written per inner unit of the feed-forward layer: bias, GELU, its product."""
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
        layers: transformer layers.
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


def layer_amounts(
    architecture: ModuleArchitecture, tensor: int, sequences: float, length: float
) -> Amounts:
    """Return the amounts of one layer on one rank.

    Args:
        architecture: of the module.
        tensor: number of ranks that the layer is sharded over.
        sequences: of a micro-batch on this rank.
        length: tokens of a sequence.
    """
    hidden, inside = architecture.hidden_size, architecture.feed_forward_size
    tokens = sequences * length
    scores = tokens * length * architecture.num_attention_heads / tensor
    sharded = QUERY_PASSES * 3 * hidden + FEED_FORWARD_PASSES * inside
    weights = (4 * hidden + 2 * inside) * hidden
    core = 4 * scores * hidden / architecture.num_attention_heads
    return Amounts(
        layers=1,
        elements=tokens * (WHOLE_PASSES * hidden + sharded / tensor) + SCORE_PASSES * scores,
        operations=2 * tokens * weights / tensor + core,
    )


def language_ends(architecture: ModuleArchitecture, tensor: int, tokens: float) -> Amounts:
    """Return the amounts of embedding, logits and loss."""
    hidden, vocabulary = architecture.hidden_size, architecture.vocab_size / tensor
    return Amounts(
        ends=1,
        elements=tokens * (END_PASSES * hidden + LOGIT_PASSES * vocabulary),
        operations=2 * tokens * hidden * vocabulary,
    )


def vision_ends(
    architecture: ModuleArchitecture, language: ModuleArchitecture, tensor: int, images: float
) -> Amounts:
    """Return the amounts of patch embedding and projector.

    The inner width of the projector is that of the language model's feed-forward layer.
    """
    shape = image_geometry(architecture)
    hidden, wide = architecture.hidden_size, language.feed_forward_size
    patches, rows = images * shape.patches, images * tokens_per_item(architecture)
    pixels = shape.num_channels * shape.patch_size**2
    features = hidden * architecture.merge_size**2
    projector = rows * wide * (features + language.hidden_size) / tensor
    inside = FEED_FORWARD_PASSES * wide / tensor + language.hidden_size
    return Amounts(
        ends=1,
        elements=END_PASSES * patches * hidden + rows * inside,
        operations=2 * (patches * pixels * hidden + projector),
    )
