"""The part of a module that one rank holds when modules have ranks of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from mimokit.engine.data.batch import ITEM_TOKENS, ITEMS, Batch, item_tokens, rows_per_sample
from mimokit.engine.data_parallel import ModuleDataParallel
from mimokit.engine.loss import masked_loss_sum, vocab_parallel_cross_entropy
from mimokit.engine.megatron import MimoModel
from mimokit.engine.models.audio import AUDIO_ENCODER_NAME
from mimokit.engine.models.encoder import Encoder
from mimokit.engine.models.vision import ENCODER_NAME
from mimokit.engine.pipeline.packing import Packed, assemble, causal_mask, check_rows
from mimokit.engine.pipeline.shapes import Shapes, hidden_of, meta_like
from mimokit.engine.rng import random_state_of


@dataclass
class StageInput:
    """What a stage computes one micro-batch from.

    Attributes:
        batch: what this rank has read, None on a stage that reads nothing.
        hidden: edge -> tensor received over it, a leaf whose gradient goes back.
        counts: edge -> the integers that came with it: items, or rows, per sample.
        integers: edge -> further small integers that came with it.
    """

    batch: Batch | None
    hidden: dict[int, torch.Tensor]
    counts: dict[int, list[int]]
    integers: dict[int, tuple[torch.Tensor, ...]] = field(default_factory=dict)


@dataclass
class StageOutput:
    """What a stage hands on.

    Attributes:
        tensor: hidden states or rows; logits at the end of the language model.
        counts: items, or rows, per sample.
        integers: further small integers that the next stage needs, as int64 tensors.
    """

    tensor: torch.Tensor
    counts: list[int]
    integers: tuple[torch.Tensor, ...] = ()


class PipelineStage(ABC):
    """What one stage computes.

    Args:
        name: of the module.
        first: nobody of the same module comes before it.
        last: nobody of the same module comes after it.
    """

    def __init__(self, name: str, first: bool, last: bool) -> None:
        self.name = name
        self.first = first
        self.last = last

    @abstractmethod
    def forward(self, given: StageInput) -> StageOutput:
        """Compute a micro-batch."""

    @abstractmethod
    def infer(self, given: Mapping[int, Shapes]) -> Shapes:
        """Return shapes and types of what it hands on: tensors on the device "meta".

        Args:
            given: edge -> what comes in over it.

        Raises:
            ValueError: something comes in that the stage cannot take.
        """

    @property
    def ends(self) -> bool:
        """Whether the language model ends here: it gives logits."""
        return False

    def loss(self, output: StageOutput, batch: Batch) -> tuple[torch.Tensor, int] | None:
        """Return (sum of losses, unmasked tokens) where the model ends here."""
        return None

    def tokens(self, output: StageOutput, batch: Batch | None) -> int:
        """Count tokens at the end of a module, where each is seen once per replica."""
        return len(output.tensor) if self.last else 0


class ModuleStage(PipelineStage):
    """One pipeline stage of one module of Megatron's.

    Args:
        name: of the module.
        wrapped: its part on this rank, with data parallel.
        first: nobody of the same module comes before it.
        last: nobody of the same module comes after it.
    """

    def __init__(self, name: str, wrapped: ModuleDataParallel, first: bool, last: bool) -> None:
        super().__init__(name, first, last)
        self.wrapped = wrapped

    def forward(self, given: StageInput) -> StageOutput:
        """Compute a micro-batch with the random state of the module."""
        with random_state_of(self.name):
            return self._forward(given)

    @abstractmethod
    def _forward(self, given: StageInput) -> StageOutput: ...

    @property
    def dtype(self) -> torch.dtype:
        """Type of its weights, and so of what it takes and gives."""
        dtype: torch.dtype = next(self.wrapped.parameters()).dtype
        return dtype


class EncoderStage(ModuleStage):
    """A stage of an encoder: items in, rows in the language model's width out.

    Where no sample of this replica has items nothing is computed, and nothing is handed on but
    that there is nothing.
    """

    encoder_name: ClassVar[str]

    def __init__(
        self, name: str, wrapped: ModuleDataParallel, first: bool, last: bool, tokens_per_item: int
    ) -> None:
        super().__init__(name, wrapped, first, last)
        self._tokens_per_item = tokens_per_item

    @property
    def _encoder(self) -> Encoder:
        return self.wrapped.module.encoders[self.encoder_name]  # type: ignore[no-any-return]

    @property
    def _rows_width(self) -> int:
        return int(self.wrapped.module.input_projections[0].encoder.linear_fc2.output_size)

    def _forward(self, given: StageInput) -> StageOutput:
        hidden, items, tokens = self._take(given)
        if hidden.shape[1]:
            hidden = self._encoder.run_layers(hidden, tokens)
        if not self.last:
            return StageOutput(hidden, items, () if tokens is None else (tokens,))
        rows = rows_per_sample(
            {ITEMS: torch.tensor(items, dtype=torch.int64), self.encoder_name: _named(tokens)},
            len(items),
            self._tokens_per_item,
        ).tolist()
        if not sum(items):
            return StageOutput(hidden.new_zeros(0, self._rows_width), rows)
        features = self._encoder.finish(hidden, tokens)
        return StageOutput(self.wrapped.module.project_embeddings([features]), rows)

    def _take(self, given: StageInput) -> tuple[torch.Tensor, list[int], torch.Tensor | None]:
        """Return hidden states [positions, items, hidden], items per sample, tokens per item."""
        if not self.first:
            ((edge, hidden),) = given.hidden.items()
            return hidden, given.counts[edge], next(iter(given.integers.get(edge, ())), None)
        assert given.batch is not None
        inputs = (given.batch.get("modality_inputs") or {}).get(self.name)
        if inputs is None or not int(inputs[ITEMS].sum()):
            return self._nothing(), [0] * len(given.batch["input_ids"]), self._no_tokens()
        tokens = item_tokens(inputs)
        tensors = {k: v for k, v in inputs[self.encoder_name].items() if k != ITEM_TOKENS}
        return self._encoder.embed(**tensors), inputs[ITEMS].tolist(), tokens

    def _nothing(self) -> torch.Tensor:
        parameter = next(self.wrapped.parameters())
        nothing: torch.Tensor = parameter.new_zeros(
            self._positions, 0, self._encoder.config.hidden_size
        )
        return nothing

    def _no_tokens(self) -> torch.Tensor | None:
        return None

    @property
    def _positions(self) -> int:
        return int(self._encoder.geometry.positions)

    def infer(self, given: Mapping[int, Shapes]) -> Shapes:
        """Return what one item becomes."""
        width = self._encoder.config.hidden_size
        for shapes in given.values():
            hidden_of(shapes, width, self.dtype, self.name)
        counts = meta_like((1,), torch.int64)
        if self.last:
            return meta_like((self._tokens_per_item, self._rows_width), self.dtype), counts
        hidden = meta_like((self._positions, 1, width), self.dtype)
        return (hidden, counts, *self._more_integers())

    def _more_integers(self) -> Shapes:
        return ()


class VisionStage(EncoderStage):
    """A stage of a vision encoder."""

    encoder_name = ENCODER_NAME


class AudioStage(EncoderStage):
    """A stage of an audio encoder; the tokens of every recording go with its hidden states."""

    encoder_name = AUDIO_ENCODER_NAME

    def _no_tokens(self) -> torch.Tensor | None:
        return torch.zeros(0, dtype=torch.int64)

    def _more_integers(self) -> Shapes:
        return (meta_like((1,), torch.int64),)


def _named(tokens: torch.Tensor | None) -> dict[str, torch.Tensor]:
    return {} if tokens is None else {ITEM_TOKENS: tokens}


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
        device = next(self.wrapped.parameters()).device
        if self.first:
            assert given.batch is not None
            packed = self._pack(given.batch, given)
            combined, mask = packed.hidden, packed.attention_mask
        else:
            ((_, hidden),) = given.hidden.items()
            self.wrapped.module.set_input_tensor(hidden)
            combined, mask = None, causal_mask(hidden.shape[0], device)
        output = self.wrapped(
            input_ids=None, position_ids=None, decoder_input=combined, attention_mask=mask
        )
        return StageOutput(output, [])

    def _pack(self, batch: Batch, given: StageInput) -> Packed:
        """Join words and the rows of all modules that have any in this micro-batch."""
        ids, positions = batch["input_ids"], batch["position_ids"]
        special = self._model.special_token_ids
        branches = {}
        for edge, modality in self._modalities.items():
            if edge in given.hidden:
                check_rows(ids, special[modality], modality, given.counts[edge])
                branches[modality] = given.hidden[edge]
        words = self._model.get_text_embeddings(ids, positions, special)
        return assemble(ids, special, words, branches)

    def infer(self, given: Mapping[int, Shapes]) -> Shapes:
        """Return the hidden states of one sample, from a zero-forward of packing on "meta"."""
        width = int(self.wrapped.module.config.hidden_size)
        taken = [hidden_of(shapes, width, self.dtype, self.name) for shapes in given.values()]
        if not self.first:
            return (taken[0],)
        special = self._model.special_token_ids
        branches = {self._modalities[edge]: rows for edge, rows in zip(given, taken, strict=True)}
        tokens = [special[name] for name, rows in branches.items() for _ in rows]
        words = meta_like((1, width), self.dtype)
        ids = torch.tensor([[*tokens, 1 + max(special.values(), default=0)]])
        return (assemble(ids, special, words, branches).hidden,)

    @property
    def ends(self) -> bool:
        """Whether this is the last stage."""
        return self.last

    def loss(self, output: StageOutput, batch: Batch) -> tuple[torch.Tensor, int] | None:
        """Return the loss on the last stage."""
        if not self.last:
            return None
        group = self.wrapped.module.pg_collection.tp
        losses = vocab_parallel_cross_entropy(output.tensor, batch["labels"], group)
        return masked_loss_sum(losses, batch["loss_mask"])

    def tokens(self, output: StageOutput, batch: Batch | None) -> int:
        """Count the tokens of the samples."""
        return int(batch["input_ids"].numel()) if self.last and batch is not None else 0
