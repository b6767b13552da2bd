"""The part of a module that one rank holds when modules have ranks of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mimokit.engine.data.batch import ITEMS, Batch
from mimokit.engine.data_parallel import ModuleDataParallel
from mimokit.engine.megatron import MimoModel
from mimokit.engine.models.vision import ENCODER_NAME, VisionTransformer
from mimokit.engine.rng import random_state_of


@dataclass
class StageInput:
    """What a stage computes one micro-batch from.

    Attributes:
        batch: what this rank has read, None on a stage that reads nothing.
        hidden: edge -> tensor received over it, a leaf whose gradient goes back.
        counts: edge -> the integers that came with it: items, or rows, per sample.
    """

    batch: Batch | None
    hidden: dict[int, torch.Tensor]
    counts: dict[int, list[int]]


@dataclass
class StageOutput:
    """What a stage hands on.

    Attributes:
        tensor: hidden states or rows; logits at the end of the language model.
        counts: items, or rows, per sample.
    """

    tensor: torch.Tensor
    counts: list[int]


class ModuleStage(ABC):
    """One pipeline stage of one module.

    Args:
        name: of the module.
        wrapped: its part on this rank, with data parallel.
        first: nobody of the same module comes before it.
        last: nobody of the same module comes after it.
    """

    def __init__(self, name: str, wrapped: ModuleDataParallel, first: bool, last: bool) -> None:
        self.name = name
        self.wrapped = wrapped
        self.first = first
        self.last = last

    def forward(self, given: StageInput) -> StageOutput:
        """Compute a micro-batch with the random state of the module."""
        with random_state_of(self.name):
            return self._forward(given)

    @abstractmethod
    def _forward(self, given: StageInput) -> StageOutput: ...


class VisionStage(ModuleStage):
    """A stage of a vision encoder: images in, rows in the language model's width out."""

    def __init__(
        self, name: str, wrapped: ModuleDataParallel, first: bool, last: bool, tokens_per_item: int
    ) -> None:
        super().__init__(name, wrapped, first, last)
        self._tokens_per_item = tokens_per_item

    @property
    def _encoder(self) -> VisionTransformer:
        return self.wrapped.module.encoders[ENCODER_NAME]  # type: ignore[no-any-return]

    def _forward(self, given: StageInput) -> StageOutput:
        if self.first:
            assert given.batch is not None
            inputs = given.batch["modality_inputs"][self.name]
            hidden = self._encoder.embed(inputs[ENCODER_NAME]["pixel_values"])
            items = inputs[ITEMS].tolist()
        else:
            ((edge, hidden),) = given.hidden.items()
            items = given.counts[edge]
        hidden = self._encoder.run_layers(hidden)
        if not self.last:
            return StageOutput(hidden, items)
        rows = self.wrapped.module.project_embeddings([self._encoder.finish(hidden)])
        return StageOutput(rows, [count * self._tokens_per_item for count in items])


class LanguageStage(ModuleStage):
    """A stage of the language model: words and rows of other modules in, logits out.

    Args:
        model: Megatron's `MimoModel` around the part of the language model.
        modalities: edge of the stage graph -> the modality whose rows come over it.
    """

    def __init__(
        self,
        name: str,
        wrapped: ModuleDataParallel,
        first: bool,
        last: bool,
        model: MimoModel,
        modalities: Mapping[int, str],
    ) -> None:
        super().__init__(name, wrapped, first, last)
        self._model = model
        self._modalities = modalities

    def _forward(self, given: StageInput) -> StageOutput:
        if self.first:
            assert given.batch is not None
            combined: torch.Tensor | None = self._combine(given.batch, given)
            tokens = combined.shape[0]  # type: ignore[union-attr]
        else:
            ((_, hidden),) = given.hidden.items()
            self.wrapped.module.set_input_tensor(hidden)
            combined, tokens = None, hidden.shape[0]
        mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)[None, None]
        output = self.wrapped(
            input_ids=None,
            position_ids=None,
            decoder_input=combined,
            attention_mask=mask.to(next(self.wrapped.parameters()).device),
        )
        return StageOutput(output, [])

    def _combine(self, batch: Batch, given: StageInput) -> torch.Tensor:
        """Scatter words and the rows of other modules to their places: [tokens, samples, h]."""
        embeddings: dict[str, Any] = {}
        for edge, modality in self._modalities.items():
            self._check_rows(batch, modality, given.counts[edge])
            embeddings[modality] = given.hidden[edge]
        ids, positions = batch["input_ids"], batch["position_ids"]
        special = self._model.special_token_ids
        embeddings["text"] = self._model.get_text_embeddings(ids, positions, special)
        combined: torch.Tensor = self._model.align_embeddings_by_token_positions(
            embeddings, ids, special
        )
        return combined

    def _check_rows(self, batch: Batch, modality: str, rows: Sequence[int]) -> None:
        placeholders = (batch["input_ids"] == self._model.special_token_ids[modality]).sum(1)
        for sample, (wanted, sent) in enumerate(zip(placeholders.tolist(), rows, strict=True)):
            if wanted != sent:
                raise ValueError(
                    f"Sample {sample} of the batch has {wanted} {modality!r} placeholder tokens "
                    f"but module {modality!r} sent {sent} rows for it; they must be equal."
                )
