"""A stage of a module behind the language model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mimokit.engine.data.batch import Batch
from mimokit.engine.data.targets import targets_of
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.parallel.loss import masked_loss_sum, vocab_parallel_cross_entropy
from mimokit.engine.pipeline.packing import causal_mask
from mimokit.engine.pipeline.shapes import Shapes, hidden_of, meta_like
from mimokit.engine.pipeline.stages import ModuleStage, StageInput, StageOutput


class DecoderStage(ModuleStage):
    """A stage of a text decoder: rows of the language model in, logits and a loss of its own out.

    Args:
        input_size: width of the rows of the language model.
    """

    def __init__(
        self, name: str, wrapped: ModuleDataParallel, first: bool, last: bool, input_size: int
    ) -> None:
        super().__init__(name, wrapped, first, last)
        self._input_size = input_size

    def _forward(self, given: StageInput) -> StageOutput:
        ((edge, hidden),) = given.hidden.items()
        if self.first:  # rows lie sample by sample, and all samples have as many
            samples, width = len(given.counts[edge][0]), hidden.shape[-1]
            hidden = hidden.reshape(samples, -1, width).transpose(0, 1).contiguous()
        output = self.wrapped(hidden, causal_mask(hidden.shape[0], hidden.device))
        return StageOutput(output, [], logits=output if self.last else None)

    def infer(self, given: Mapping[int, Shapes]) -> Shapes:
        """Return the hidden states of one token."""
        width = int(self.wrapped.module.config.hidden_size)
        for shapes in given.values():
            taken = self._input_size if self.first else width
            hidden_of(shapes, taken, self.dtype, self.name)
        return (meta_like((1, 1, width), self.dtype),)

    def loss(self, output: StageOutput, batch: Batch) -> tuple[torch.Tensor, int] | None:
        """Return the loss of what it wrote, on its last stage."""
        if output.logits is None:
            return None
        labels, loss_mask = targets_of(batch, self.name)
        group = self.wrapped.module.pg_collection.tp
        losses = vocab_parallel_cross_entropy(output.logits, labels, group)
        return masked_loss_sum(losses, loss_mask)

    def tokens(self, output: StageOutput, batch: Batch | None) -> int:
        """Count the tokens of the samples."""
        return int(batch["input_ids"].numel()) if self.last and batch is not None else 0
