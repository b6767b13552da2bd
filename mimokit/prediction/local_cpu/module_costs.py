"""CPU seconds of one module's passes and messages on one rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mimokit.architecture.tokens import image_geometry, tokens_per_item
from mimokit.config import ExperimentConfig
from mimokit.planning.ranks import ModuleRanks
from mimokit.prediction.local_cpu.cost_model import CoreCosts
from mimokit.prediction.local_cpu.operation_counts import (
    NUMBER_BYTES,
    Amounts,
    language_ends,
    layer_amounts,
    vision_ends,
)

Way = Literal["forward", "backward"]
LAYER_COLLECTIVES = 2
"""Tensor-parallel all-reduces per layer and pass: after attention, and after feed-forward."""


@dataclass(frozen=True)
class ModuleCosts:
    """CPU seconds of a module on its ranks.

    Attributes:
        config: of the layout.
        costs: of this machine.
        rank_map: of the module.
        items: sequences per sample: 1 for the language model, images per sample for an encoder.
    """

    config: ExperimentConfig
    costs: CoreCosts
    rank_map: ModuleRanks
    items: float

    @property
    def is_language(self) -> bool:
        """Whether this is the language model."""
        return self.rank_map.module == self.config.model.llm_module_name

    @property
    def length(self) -> int:
        """Tokens per sequence."""
        own = self.config.model.get_architecture(self.rank_map.module)
        return self.config.data.seq_length if self.is_language else image_geometry(own).positions

    def hidden_bytes(self, samples: float) -> float:
        """Return the bytes of the hidden states of `samples` samples."""
        own = self.config.model.get_architecture(self.rank_map.module)
        return NUMBER_BYTES * samples * self.items * self.length * own.hidden_size

    def row_bytes(self, samples: float) -> float:
        """Return the bytes that an encoder sends to the language model."""
        own = self.config.model.get_architecture(self.rank_map.module)
        return NUMBER_BYTES * samples * self.items * tokens_per_item(own) * self._width

    @property
    def _width(self) -> int:
        model = self.config.model
        return model.get_architecture(model.llm_module_name).hidden_size

    def seconds(self, way: Way, samples: float, place: int) -> float:
        """Return the CPU seconds of a pass of one stage, including tensor-parallel collectives.

        Args:
            way: forward or backward.
            samples: of a micro-batch on one replica.
            place: index of the stage within the module.
        """
        piece = "language" if self.is_language else "encoder"
        amounts = self._amounts(samples, place)
        return self.costs.piece(f"{piece} {way}", amounts.terms()) + self._collectives(
            way, samples, place
        )

    def _ends(self, place: int) -> tuple[bool, bool]:
        return place == 0, place == self.rank_map.pipeline_parallel - 1

    def _amounts(self, samples: float, place: int) -> Amounts:
        model, tensor = self.config.model, self.rank_map.tensor_parallel
        own = model.get_architecture(self.rank_map.module)
        sequences = samples * self.items
        layers = own.num_layers / self.rank_map.pipeline_parallel
        inside = layer_amounts(own, tensor, sequences, self.length).times(layers)
        if self.is_language:
            ends = language_ends(own, tensor, sequences * self.length)
        else:
            language = model.get_architecture(model.llm_module_name)
            ends = vision_ends(own, language, tensor, sequences)
        return inside + replace(ends.times(sum(self._ends(place)) / 2), ends=1.0)

    def _collectives(self, way: Way, samples: float, place: int) -> float:
        tensor = self.rank_map.tensor_parallel
        own = self.config.model.get_architecture(self.rank_map.module)
        layers = own.num_layers / self.rank_map.pipeline_parallel
        hidden = self.costs.collective("all-reduce", tensor, self.hidden_bytes(samples))
        seconds = LAYER_COLLECTIVES * layers * hidden
        first, last = self._ends(place)
        if not self.is_language:
            rows = self.costs.collective("all-reduce", tensor, self.row_bytes(samples))
            return seconds + last * rows
        if way == "backward":
            return seconds + last * hidden
        token = NUMBER_BYTES * samples * self.length
        loss = [self.costs.collective("all-reduce", tensor, n * token) for n in (1, 2)]
        return seconds + first * hidden + last * sum(loss)
