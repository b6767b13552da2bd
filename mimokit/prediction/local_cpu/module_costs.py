"""CPU seconds of a module's passes and messages, and the counts that they depend on.

The time of a piece is the sum of its counts, each times a constant (`CoreCosts`). At widths that
run on a laptop, the fixed cost of a layer exceeds the cost of its arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mimokit.architecture.flops import forward_flops
from mimokit.architecture.layer_work.collectives import (
    LayerCollective,
    Way,
    end_collectives,
    layer_collectives,
)
from mimokit.architecture.layer_work.products import (
    NORMED,
    NORMED_AGAIN,
    layer_products,
    score_work,
)
from mimokit.architecture.modules import DecoderHead, EncoderBranch, LanguageModel
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.architecture.parameters_on_rank import Module, net_of
from mimokit.architecture.transformer import Transformer
from mimokit.planning.ranks import ModuleRanks
from mimokit.prediction.local_cpu.cost_model import NUMBER_BYTES, CoreCosts

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


@dataclass(frozen=True)
class Amounts:
    """Counts that the CPU time of a forward or backward pass depends on.

    Attributes:
        ends: 1 for the cost of a pass outside its layers, even in a stage without either end of
            the module: calling Megatron's modules and autograd takes longer than embedding a
            batch.
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


def language_ends(module: LanguageModel | DecoderHead, tensor: int, tokens: float) -> Amounts:
    """Return the amounts of embedding or projection, logits and loss."""
    written = END_PASSES * module.net.hidden + LOGIT_PASSES * module.vocab / tensor
    flops = forward_flops(module, 1, tokens)
    operations = flops.first + flops.last / tensor
    return Amounts(ends=1, elements=tokens * written, operations=operations)


def vision_ends(
    branch: EncoderBranch, tensor: int, images: float, positions: int, tokens: int
) -> Amounts:
    """Return the amounts of patch embedding, or positions of rows, and projector."""
    projector = branch.projector
    inner, outer = sum(projector.widths[1:-1]) * (1 + projector.copies), projector.row_width
    flops = forward_flops(branch, positions, images, tokens)
    projected = FEED_FORWARD_PASSES * inner / tensor + outer
    return Amounts(
        ends=1,
        elements=images * (END_PASSES * positions * branch.encoder.net.hidden + tokens * projected),
        operations=flops.first + flops.last / tensor,
    )


@dataclass(frozen=True)
class ModuleCosts:
    """CPU seconds of a module on its ranks.

    Attributes:
        items: sequences per sample: images per sample for an encoder, else 1.
        rows: those that a module makes of it for the next.
        stages: of its pipeline, all chunks counted.
    """

    module: Module
    costs: CoreCosts
    rank_map: ModuleRanks
    items: float
    length: int
    rows: int
    stages: int = 1

    def hidden_bytes(self, samples: float) -> float:
        """Return the bytes of the hidden states of `samples` samples."""
        return NUMBER_BYTES * samples * self.items * self.length * net_of(self.module).hidden

    def row_bytes(self, samples: float) -> float:
        """Return the bytes that the module sends to the next."""
        module, sequences = self.module, samples * self.items
        if isinstance(module, EncoderBranch):
            return NUMBER_BYTES * sequences * self.rows * module.projector.row_width
        return NUMBER_BYTES * sequences * self.rows * module.net.hidden

    def seconds(self, way: Way, samples: float, place: int) -> float:
        """Return the CPU seconds of a pass of one stage, including tensor-parallel collectives."""
        piece = "encoder" if isinstance(self.module, EncoderBranch) else "language"
        amounts = self._amounts(samples, place)
        return self.costs.piece(f"{piece} {way}", amounts.terms()) + self._collectives(
            way, samples, place
        )

    @property
    def _layers(self) -> float:
        return net_of(self.module).layers / self.stages

    def _ends(self, place: int) -> tuple[bool, bool]:
        return place == 0, place == self.stages - 1

    def _amounts(self, samples: float, place: int) -> Amounts:
        module, tensor, sequences = self.module, self.rank_map.tensor_parallel, samples * self.items
        layer = layer_amounts(net_of(module), tensor, sequences, self.length)
        if isinstance(module, EncoderBranch):
            ends = vision_ends(module, tensor, sequences, self.length, self.rows)
        else:
            ends = language_ends(module, tensor, sequences * self.length)
        ends = replace(ends.times(sum(self._ends(place)) / 2), ends=1.0)
        return layer.times(self._layers) + ends

    def _collectives(self, way: Way, samples: float, place: int) -> float:
        """Return the seconds of those of the layers, of the embedding and of the last stage."""
        net, sequences = net_of(self.module), samples * self.items
        tokens = sequences * self.length
        sizes = ParallelSizes(self.rank_map.tensor_parallel, sequence_parallel=False)
        first, last = self._ends(place)
        layer = layer_collectives(net, None, sizes, way)
        seconds = self._layers * self._met(layer, tokens)
        if not isinstance(self.module, EncoderBranch):
            embeds = first and isinstance(self.module, LanguageModel)
            embedding = end_collectives("embedding", net.hidden, sizes, way)
            output = end_collectives("output", net.hidden, sizes, way)
            met = embeds * self._met(embedding, tokens) + last * self._met(output, tokens)
            return seconds + met
        width = self.module.projector.widths[-1 if way == "forward" else 0]
        projector = end_collectives("projector", width, sizes, way)
        met = self.module.projector.meetings * self._met(projector, sequences * self.rows)
        return seconds + last * met

    def _met(self, collectives: Iterable[LayerCollective], tokens: float) -> float:
        """Return the seconds of those of them that the tensor-parallel group has."""
        ranks = self.rank_map.tensor_parallel
        return sum(
            float(each.count)
            * self.costs.collective(each.kind, ranks, NUMBER_BYTES * tokens * float(each.numbers))
            for each in collectives
            if each.count
        )
