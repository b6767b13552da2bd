"""CPU seconds of one module's passes and messages on one rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mimokit.architecture.layer_work.collectives import (
    LayerCollective,
    Way,
    end_collectives,
    layer_collectives,
)
from mimokit.architecture.modules import LanguageModel
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.architecture.parameters_on_rank import Module, net_of
from mimokit.planning.ranks import ModuleRanks
from mimokit.prediction.local_cpu.cost_model import CoreCosts
from mimokit.prediction.local_cpu.operation_counts import (
    NUMBER_BYTES,
    Amounts,
    language_ends,
    layer_amounts,
    vision_ends,
)


@dataclass(frozen=True)
class ModuleCosts:
    """CPU seconds of a module on its ranks.

    Attributes:
        items: sequences per sample: 1 for the language model, images per sample for an encoder.
        length: tokens of a sequence.
        rows: those that an encoder makes of it for the language model.
    """

    module: Module
    costs: CoreCosts
    rank_map: ModuleRanks
    items: float
    length: int
    rows: int

    def hidden_bytes(self, samples: float) -> float:
        """Return the bytes of the hidden states of `samples` samples."""
        return NUMBER_BYTES * samples * self.items * self.length * net_of(self.module).hidden

    def row_bytes(self, samples: float) -> float:
        """Return the bytes that an encoder sends to the language model."""
        assert not isinstance(self.module, LanguageModel)
        return NUMBER_BYTES * samples * self.items * self.rows * self.module.projector.widths[-1]

    def seconds(self, way: Way, samples: float, place: int) -> float:
        """Return the CPU seconds of a pass of one stage, including tensor-parallel collectives.

        Args:
            samples: of a micro-batch on one replica.
            place: index of the stage within the module.
        """
        piece = "language" if isinstance(self.module, LanguageModel) else "encoder"
        amounts = self._amounts(samples, place)
        return self.costs.piece(f"{piece} {way}", amounts.terms()) + self._collectives(
            way, samples, place
        )

    @property
    def _layers(self) -> float:
        return net_of(self.module).layers / self.rank_map.pipeline_parallel

    def _ends(self, place: int) -> tuple[bool, bool]:
        return place == 0, place == self.rank_map.pipeline_parallel - 1

    def _amounts(self, samples: float, place: int) -> Amounts:
        module, tensor, sequences = self.module, self.rank_map.tensor_parallel, samples * self.items
        layer = layer_amounts(net_of(module), tensor, sequences, self.length)
        if isinstance(module, LanguageModel):
            ends = language_ends(module, tensor, sequences * self.length)
        else:
            ends = vision_ends(module, tensor, sequences, self.length, self.rows)
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
        if isinstance(self.module, LanguageModel):
            embedding = end_collectives("embedding", net.hidden, sizes, way)
            output = end_collectives("output", net.hidden, sizes, way)
            return seconds + first * self._met(embedding, tokens) + last * self._met(output, tokens)
        width = self.module.projector.widths[-1 if way == "forward" else 0]
        projector = end_collectives("projector", width, sizes, way)
        return seconds + last * self._met(projector, sequences * self.rows)

    def _met(self, collectives: Iterable[LayerCollective], tokens: float) -> float:
        """Return the seconds of those of them that the tensor-parallel group has."""
        ranks = self.rank_map.tensor_parallel
        return sum(
            float(each.count)
            * self.costs.collective(each.kind, ranks, NUMBER_BYTES * tokens * float(each.numbers))
            for each in collectives
            if each.count
        )
