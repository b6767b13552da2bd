"""The stage of a whole modality of the user's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mimokit.architecture.tokens import image_geometry, tokens_per_item
from mimokit.config import ModuleArchitecture
from mimokit.engine.data import batch
from mimokit.engine.device import rank_device
from mimokit.engine.models.own_modules import blank_item
from mimokit.engine.models.patches import GRID, rows_alone, token_grids
from mimokit.engine.parallel.context import alike_on_contexts
from mimokit.engine.pipeline.base_stage import (
    ModuleStage,
    Pass,
    StageInput,
    StageOutput,
    StagePlace,
    rows_inferred,
)
from mimokit.engine.ragged import Ragged
from mimokit.units import counted


@dataclass(frozen=True)
class OwnModality:
    """What mimokit knows of a modality of the user's.

    Attributes:
        tokens_per_item: that an item becomes.
        no_items: returns the inputs of 0 items of its encoders.
        grids: returns the grids in tokens of so many items of a batch's inputs, which are sent with
            the rows; None: they are not.
    """

    width: int
    tokens_per_item: int
    no_items: Callable[[], Mapping[str, torch.Tensor]]
    merge_size: int
    grids: Callable[[batch.Batch, int], torch.Tensor] | None = None


class ModalityStage(ModuleStage):
    """A whole modality of the user's, from a `ModuleSpec` of Megatron: encoders and projection.

    It is called as Megatron's `MimoModel` calls it, with the inputs of its encoders by their names.
    """

    def __init__(self, place: StagePlace, own: OwnModality) -> None:
        super().__init__(place)
        self._own = own

    def _forward(self, given: StageInput, told: Pass) -> StageOutput:
        assert given.batch is not None
        samples = len(given.batch["input_ids"])
        inputs = (given.batch.get("modality_inputs") or {}).get(self.name)
        counts = batch.rows_per_sample(inputs, samples, self._own.tokens_per_item).tolist()
        rows = self._rows_of(inputs or {}, sum(counts))
        if self._own.grids is None:
            return StageOutput(rows, counts)
        items = [0] * samples if inputs is None else inputs[batch.ITEMS].tolist()
        return StageOutput(rows, counts, items, self._own.grids(inputs or {}, sum(items)))

    def _rows_of(self, inputs: Mapping[str, Any], number: int) -> torch.Tensor:
        if not number:
            return self._no_rows(inputs)
        modality = self.wrapped.module
        tensors = batch.tensors_by_encoder(self.name, modality.encoders, inputs)
        rows = modality(encoder_inputs=batch.in_dtype(tensors, self.dtype))
        if tuple(rows.shape) != (number, self._own.width):
            raise ValueError(
                f"Module {self.name!r} returned rows of {list(rows.shape)}; its items are "
                f"{counted(self._own.tokens_per_item, 'token')} each, so it must be "
                f"{[number, self._own.width]}."
            )
        return alike_on_contexts(rows, self.wrapped.ownership.groups.cp)

    def _no_rows(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return the rows of no item; in full shards, none of those of a blank one.

        Other replicas wait for the shards of this one. An encoder of which a batch without items
        has no tensors takes those of the network of its module.
        """
        modality = self.wrapped.module
        rows: torch.Tensor = next(self.wrapped.parameters()).new_zeros(0, self._own.width)
        if self.wrapped.shares_layers:
            nothing = {name: inputs.get(name, self._own.no_items()) for name in modality.encoders}
            merged = self._own.merge_size
            blank = {name: blank_item(no, merged, self.dtype) for name, no in nothing.items()}
            rows = modality(encoder_inputs=blank)[:0]
        return rows

    def infer(self, given: Mapping[int, Ragged]) -> Ragged:
        """Return the shapes for one item."""
        shape = self._own.tokens_per_item, self._own.width
        return rows_inferred(shape, self.dtype, with_grids=self._own.grids is not None)


def token_grids_of(network: ModuleArchitecture, inputs: batch.Batch, items: int) -> torch.Tensor:
    """Return the grids in tokens of the items that a modality of the user's encodes: [items, 3]."""
    grids = [
        tensors[GRID] for name, tensors in inputs.items() if name != batch.ITEMS and GRID in tensors
    ]
    if grids:
        return token_grids(grids[0], image_geometry(network))
    tokens = batch.item_tokens(inputs)
    if tokens is None:
        tokens = torch.full((items,), tokens_per_item(network), device=rank_device())
    return rows_alone(tokens)
