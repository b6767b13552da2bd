"""The stages of encoders and adapters, and of decoders of images and sound, which are adapters."""

from collections.abc import Mapping, Sequence

import torch

from mimokit.engine.data.batch import ITEMS, Batch, encoder_tensors, in_dtype, rows_per_sample
from mimokit.engine.data.reconstruction import Reconstruction
from mimokit.engine.models.encoder import Encoder, EncoderKind
from mimokit.engine.models.patches import GRID, ITEM_TOKENS, rows_alone
from mimokit.engine.models.projector import row_width
from mimokit.engine.parallel.context import alike_on_contexts, for_all_ranks
from mimokit.engine.parallel.loss import squared_errors
from mimokit.engine.pipeline.base_stage import (
    FurtherLoss,
    ModuleStage,
    Pass,
    StageInput,
    StageOutput,
    StagePlace,
    hidden_of,
    meta_like,
    rows_inferred,
)
from mimokit.engine.ragged import Ragged, items_of, samples_of


class EncoderStage(ModuleStage):
    """A stage of an encoder: items in, rows in the width of the module that it feeds out.

    Without items, nothing is computed, and the stage sends empty tensors. Where items differ in
    size, the sizes are sent with the hidden states.

    Args:
        tokens_per_item: where all items have the same size.
        with_grids: the grids of items in tokens, and the number of items of every sample, are sent
            with the rows.
    """

    def __init__(
        self, place: StagePlace, kind: EncoderKind, tokens_per_item: int, with_grids: bool = False
    ) -> None:
        super().__init__(place)
        self._kind = kind
        self._tokens_per_item = tokens_per_item
        self._with_grids = with_grids

    @property
    def _encoder(self) -> Encoder:
        return self._part.encoders[self._kind.name]  # type: ignore[no-any-return]

    @property
    def _rows_width(self) -> int:
        return row_width(self._part.input_projections[0])

    def _forward(self, given: StageInput, told: Pass) -> StageOutput:
        run = self._run_part if self._encoder.shared is None else self._run_shared
        output = (self._run_whole if self.first and self.last else run)(given)
        if not self.last:
            return output
        items, sizes = items_of(output), output.sizes
        samples = self._rows_of_samples(items, sizes)
        if not self._with_grids:
            return StageOutput(output.tensor, samples)
        if sizes is None:
            sizes = output.tensor.new_full((sum(items),), self._tokens_per_item, dtype=torch.int64)
        return StageOutput(output.tensor, samples, items, self._encoder.token_grids(sizes))

    def _run_whole(self, given: StageInput) -> StageOutput:
        """Encode with the whole encoder; return the rows of its items.

        An encoder that shares its items with other replicas also runs where this rank has none.
        """
        items, tensors = self._inputs(given)
        if self._encoder.shares_items:
            tensors = tensors or in_dtype(self._encoder.no_items(), self.dtype)
        elif tensors is None:
            rows = next(self.wrapped.parameters()).new_zeros(0, self._rows_width)
            return StageOutput(rows, items=items, sizes=self._no_sizes())
        rows = self._project(self._encoder(**tensors))
        return StageOutput(rows, items=items, sizes=self._sizes_in(tensors))

    def _run_part(self, given: StageInput) -> StageOutput:
        taken = self._take(given)
        hidden = self._encoder.run_layers(taken.tensor, taken.sizes)
        output = self._rows(hidden, taken.sizes) if self.last else hidden
        return StageOutput(output, items=taken.items, sizes=taken.sizes)

    def _run_shared(self, given: StageInput) -> StageOutput:
        """Do the same on replicas that share their items; messages say those of the samples."""
        shared = self._encoder.shared
        assert shared is not None
        if self.first:
            items, inputs = self._inputs(given)
            inputs = inputs or in_dtype(self._encoder.no_items(), self.dtype)
            sizes = self._sizes_in(inputs)
            tensors = {name: value for name, value in inputs.items() if name != ITEM_TOKENS}
            here, context = shared.dispatch(**tensors)
            hidden = self._encoder.embed(**here)
        else:
            taken = self._take(given)
            hidden, items, sizes = taken.tensor, items_of(taken), taken.sizes
            context = shared.follow(sum(items), sizes)
        sizes_here = shared.sizes(context)
        with shared.computing(context):
            hidden = self._encoder.run_layers(hidden, sizes_here)
        if not self.last:
            return StageOutput(hidden, items=items, sizes=sizes)
        tokens = self._encoder.features(hidden, sizes_here)
        rows = self._project(shared.give_back(context, tokens))
        return StageOutput(rows, items=items, sizes=sizes)

    def _rows(self, hidden: torch.Tensor, sizes: torch.Tensor | None) -> torch.Tensor:
        if not hidden.shape[1] and not self._encoder.shares_layers:
            return hidden.new_zeros(0, self._rows_width)
        return self._project(self._encoder.features(hidden, sizes))

    def _project(self, features: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self._part.project_embeddings([features])
        return alike_on_contexts(rows, self.wrapped.ownership.groups.cp)

    def _sizes_in(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        return None if self._kind.sizes is None else inputs.get(self._kind.sizes)

    def _rows_of_samples(self, items: list[int], sizes: torch.Tensor | None) -> list[int]:
        inputs: Batch = {ITEMS: torch.tensor(items, dtype=torch.int64)}
        if sizes is not None:
            inputs[self._kind.name] = {ITEM_TOKENS: self._encoder.token_grids(sizes).prod(1)}
        return rows_per_sample(inputs, len(items), self._tokens_per_item).tolist()

    def _take(self, given: StageInput) -> Ragged:
        """Return hidden states [positions, items, hidden] of items and their sizes."""
        if not self.first:
            (received,) = given.received.values()
            return received
        items, inputs = self._inputs(given)
        if inputs is None and self._encoder.shares_items:
            inputs = in_dtype(self._encoder.no_items(), self.dtype)
        if inputs is None:
            width, parameter = self._encoder.config.hidden_size, next(self.wrapped.parameters())
            hidden = parameter.new_zeros(self._positions, 0, width)
            return Ragged(hidden, items=items, sizes=self._no_sizes())
        tensors = {name: value for name, value in inputs.items() if name != ITEM_TOKENS}
        hidden = self._encoder.embed(**tensors)
        return Ragged(hidden, items=items, sizes=self._sizes_in(inputs))

    def _items(self, given: StageInput) -> list[int]:
        if self.first:
            return self._inputs(given)[0]
        (received,) = given.received.values()
        return items_of(received)

    def _inputs(self, given: StageInput) -> tuple[list[int], Mapping[str, torch.Tensor] | None]:
        assert given.batch is not None
        inputs = (given.batch.get("modality_inputs") or {}).get(self.name)
        if inputs is None:
            return [0] * len(given.batch["input_ids"]), None
        items = inputs[ITEMS].tolist()
        if not sum(items):
            return items, None
        return items, in_dtype(encoder_tensors(self.name, inputs), self.dtype)

    def _no_sizes(self) -> torch.Tensor | None:
        if self._kind.sizes is None:
            return None
        device = next(self.wrapped.parameters()).device
        return torch.zeros((0, *self._kind.size_shape), dtype=torch.int64, device=device)

    @property
    def _positions(self) -> int:
        return int(self._encoder.geometry.positions)

    def infer(self, given: Mapping[int, Ragged]) -> Ragged:
        """Return the shapes for one item."""
        for sent in given.values():
            width = self._encoder.width_between(before=True)
            hidden_of(sent, width, self.dtype, self.name)
        if not self.last:
            positions = self._encoder.positions_between()
            hidden = meta_like(
                (positions, 1, self._encoder.width_between(before=False)), self.dtype
            )
            item = (1, *self._kind.size_shape)
            sizes = None if self._kind.sizes is None else meta_like(item, torch.int64)
            return Ragged(hidden, items=[1], sizes=sizes)
        return rows_inferred(
            (self._tokens_per_item, self._rows_width), self.dtype, self._with_grids
        )


class AdapterStage(EncoderStage):
    """A stage of an adapter: rows of other encoders in, rows of the next module's width out.

    A sample has the items of all encoders, one encoder's behind another's.

    Args:
        incoming: edges of its first stage, in the order of the encoders.
    """

    def __init__(
        self, place: StagePlace, kind: EncoderKind, tokens_per_item: int, incoming: Sequence[int]
    ) -> None:
        super().__init__(place, kind, tokens_per_item, with_grids=True)
        self._incoming = incoming

    def _inputs(self, given: StageInput) -> tuple[list[int], Mapping[str, torch.Tensor] | None]:
        sent = [given.received[edge] for edge in self._incoming if edge in given.received]
        if not sent:  # nothing crosses without items
            return [0] * len(self.samples(given.step or 0, given.microbatch)), None
        numbers = [items_of(part) for part in sent]
        items = [sum(of_sample) for of_sample in zip(*numbers, strict=True)]
        if not sum(items):
            return items, None
        rows = _joined([part.tensor for part in sent], [samples_of(part) for part in sent])
        grids = _joined([part.sizes for part in sent if part.sizes is not None], numbers)
        return items, {"rows": for_all_ranks(rows, self.wrapped.ownership.groups.cp), GRID: grids}

    def infer(self, given: Mapping[int, Ragged]) -> Ragged:
        """Return the shapes for one item."""
        if self.first:
            for sent in given.values():
                hidden_of(sent, self._encoder.input_size, self.dtype, self.name)
        return super().infer({} if self.first else given)


def _joined(parts: Sequence[torch.Tensor], counts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return what several encoders have of each sample, one behind another, sample by sample.

    Args:
        parts: by encoder, [of all samples, …].
    """
    split = [torch.split(part, list(own)) for part, own in zip(parts, counts, strict=True)]
    return torch.cat([own for of_sample in zip(*split, strict=True) for own in of_sample])


class ImageDecoderStage(AdapterStage):
    """A stage of an image decoder: rows of the language model in, pixels and a separate loss out.

    Of the rows of a sample it takes those of the placeholders of images. A decoder of sound takes
    those of recordings.
    """

    def __init__(
        self,
        place: StagePlace,
        kind: EncoderKind,
        reconstruction: Reconstruction,
        incoming: Sequence[int],
    ) -> None:
        super().__init__(place, kind, reconstruction.geometry.tokens, incoming)
        self._reconstruction = reconstruction

    def _inputs(self, given: StageInput) -> tuple[list[int], Mapping[str, torch.Tensor] | None]:
        assert given.batch is not None
        items = self._reconstruction.items(given.batch)
        if not sum(items):
            return items, None
        (received,) = given.received.values()
        placed = zip(self._reconstruction.places(given.batch), samples_of(received), strict=True)
        taken = torch.cat([own[:count] for own, count in placed])
        rows = for_all_ranks(received.tensor, self.wrapped.ownership.groups.cp)
        each = self._reconstruction.rows_of_items(given.batch).to(taken.device)
        return items, {"rows": rows[taken], GRID: rows_alone(each)}

    def further_loss(self, output: StageOutput, batch: Batch | None) -> FurtherLoss | None:
        """Return the loss of the rows on the last stage; context-parallel ranks have it alike."""
        if not self.last or batch is None:
            return None
        if not len(output.tensor):
            nothing = output.tensor.float().sum()
            return FurtherLoss(nothing, 0.0, 0.0)
        errors = squared_errors(output.tensor, self._reconstruction.targets(batch))
        ranks = self.wrapped.ownership.groups.cp.size()
        return FurtherLoss(
            self._reconstruction.weight * errors,
            float(errors.detach()) / ranks,
            len(output.tensor) / ranks,
        )
