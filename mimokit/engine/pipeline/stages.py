"""The stages of encoders and adapters, of the language model and of decoders behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mimokit.architecture.tokens import image_geometry, tokens_per_item
from mimokit.config import ModuleArchitecture
from mimokit.config.user_code import OwnLoss
from mimokit.engine.data.batch import (
    ITEMS,
    Batch,
    encoder_tensors,
    in_dtype,
    item_tokens,
    one_further,
    rows_per_sample,
    sample_lengths,
    targets_of,
    tensors_by_encoder,
    without_padding,
)
from mimokit.engine.data.check import check_words
from mimokit.engine.data.reconstruction import Reconstruction
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import GPTModel, MimoModel
from mimokit.engine.models.encoder import Encoder, EncoderKind
from mimokit.engine.models.experts import shares_experts
from mimokit.engine.models.language import run_language
from mimokit.engine.models.own_modules import blank_item
from mimokit.engine.models.patches import (
    GRID,
    ITEM_TOKENS,
    rows_alone,
    three_axis_positions,
    token_grids,
)
from mimokit.engine.models.projector import row_width
from mimokit.engine.models.token_prediction import predicts_further
from mimokit.engine.models.transformer import causal_mask
from mimokit.engine.parallel.context import SequenceCut, alike_on_contexts, for_all_ranks
from mimokit.engine.parallel.loss import (
    loss_sum,
    masked_loss_sum,
    squared_errors,
    vocab_parallel_cross_entropy,
)
from mimokit.engine.parallel.row import SampleRow
from mimokit.engine.pipeline.base_stage import (
    FurtherLoss,
    ModuleStage,
    Pass,
    StageInput,
    StageOutput,
    StagePlace,
    hidden_of,
    meta_like,
)
from mimokit.engine.pipeline.packing import Packed, assemble, check_rows, checked_grids
from mimokit.engine.ragged import Ragged
from mimokit.units import counted


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
        items, sizes = _items_of(output), output.sizes
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
            hidden, items, sizes = taken.tensor, _items_of(taken), taken.sizes
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
        return _items_of(received)

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


def _items_of(sent: Ragged) -> list[int]:
    assert sent.items is not None, "stages of encoders tell each other the items of samples"
    return sent.items


def _samples_of(sent: Ragged) -> list[int]:
    assert sent.samples is not None, "rows are counted by sample"
    return sent.samples


def rows_inferred(shape: tuple[int, int], dtype: torch.dtype, with_grids: bool) -> Ragged:
    """Return the rows of one item on "meta"."""
    rows, samples = meta_like(shape, dtype), [shape[0]]
    if not with_grids:
        return Ragged(rows, samples)
    return Ragged(rows, samples, items=[1], sizes=meta_like((1, 3), torch.int64))


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
        numbers = [_items_of(part) for part in sent]
        items = [sum(of_sample) for of_sample in zip(*numbers, strict=True)]
        if not sum(items):
            return items, None
        rows = _joined([part.tensor for part in sent], [_samples_of(part) for part in sent])
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
        counts: by encoder: of every sample.
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
        placed = zip(self._reconstruction.places(given.batch), _samples_of(received), strict=True)
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


@dataclass(frozen=True)
class OwnModality:
    """What mimokit knows of a modality of the user's.

    Attributes:
        width: of the module that it feeds.
        tokens_per_item: that an item becomes.
        no_items: returns the inputs of 0 items of its encoders.
        merge_size: of images of any size.
        grids: returns the grids in tokens of so many items of a batch's inputs, which are sent with
            the rows; None: they are not.
    """

    width: int
    tokens_per_item: int
    no_items: Callable[[], Mapping[str, torch.Tensor]]
    merge_size: int
    grids: Callable[[Batch, int], torch.Tensor] | None = None


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
        counts = rows_per_sample(inputs, samples, self._own.tokens_per_item).tolist()
        rows = self._rows_of(inputs or {}, sum(counts))
        if self._own.grids is None:
            return StageOutput(rows, counts)
        items = [0] * samples if inputs is None else inputs[ITEMS].tolist()
        return StageOutput(rows, counts, items, self._own.grids(inputs or {}, sum(items)))

    def _rows_of(self, inputs: Mapping[str, Any], number: int) -> torch.Tensor:
        if not number:
            return self._no_rows(inputs)
        modality = self.wrapped.module
        tensors = tensors_by_encoder(self.name, modality.encoders, inputs)
        rows = modality(encoder_inputs=in_dtype(tensors, self.dtype))
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


def token_grids_of(network: ModuleArchitecture, inputs: Batch, items: int) -> torch.Tensor:
    """Return the grids in tokens of the items that a modality of the user's encodes: [items, 3].

    Args:
        inputs: of the modality in a batch.
    """
    grids = [tensors[GRID] for name, tensors in inputs.items() if name != ITEMS and GRID in tensors]
    if grids:
        return token_grids(grids[0], image_geometry(network))
    tokens = item_tokens(inputs)
    if tokens is None:
        tokens = torch.full((items,), tokens_per_item(network), device=rank_device())
    return rows_alone(tokens)


def values_on_rank(model: GPTModel, output: StageOutput, values: torch.Tensor) -> torch.Tensor:
    """Return the values, of [samples, tokens], of the tokens whose logits an output has."""
    if output.row is None:
        cut = SequenceCut.of(model)
        return cut.tokens_on_rank(cut.padded(values, 1))
    cut = SequenceCut.of(model, output.row.lengths)
    return cut.tokens_on_rank(output.row.lay(values)[None])


class _LogitsStage(ModuleStage):
    _loss_func: OwnLoss | None = None

    def loss(self, output: StageOutput, batch: Batch | None) -> tuple[torch.Tensor, float] | None:
        if output.logits is None or batch is None:
            return None
        losses, loss_mask = self._losses(output, output.logits, *self._targets(batch))
        return loss_sum(self._loss_func, losses, loss_mask)

    def _losses(
        self,
        output: StageOutput,
        logits: torch.Tensor,
        labels: torch.Tensor,
        loss_mask: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the losses of the tokens of this rank and their mask.

        Args:
            labels: [samples, tokens], as the mask.
        """
        labels, loss_mask = (
            values_on_rank(self.wrapped.module, output, values) for values in (labels, loss_mask)
        )
        group = self.wrapped.module.pg_collection.tp
        return vocab_parallel_cross_entropy(logits, labels, group), loss_mask

    def _cut_of(self, row: SampleRow | None = None) -> SequenceCut:
        return SequenceCut.of(self.wrapped.module, None if row is None else row.lengths)

    def _row_of(self, lengths: list[int]) -> SampleRow:
        return SampleRow.of(lengths, self._cut_of().divisor)

    def _rows(self, rows: torch.Tensor) -> torch.Tensor:
        return for_all_ranks(rows, self.wrapped.module.pg_collection.cp)

    def _mask(self, hidden: torch.Tensor) -> torch.Tensor:
        return causal_mask(hidden.shape[0] * self._cut_of().parts, hidden.device)

    def whole_logits(self, output: StageOutput, batch: Batch) -> torch.Tensor:
        """Return the logits of all tokens, [samples, tokens, vocabulary / TP]."""
        assert output.logits is not None
        hidden = output.logits.transpose(0, 1).contiguous()
        whole = self._cut_of(output.row).of_all_contexts(hidden, summed=False)
        return _by_sample(whole, output.row, batch).contiguous()

    def _targets(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return labels and loss mask, both [samples, tokens]."""
        return batch["labels"], batch["loss_mask"]

    def tokens(self, output: StageOutput, batch: Batch | None) -> int:
        if output.row is not None:
            return sum(output.row.lengths) if self.last else 0
        return int(batch["input_ids"].numel()) if self.last and batch is not None else 0


def _by_sample(hidden: torch.Tensor, row: SampleRow | None, batch: Batch) -> torch.Tensor:
    """Return [samples, tokens, …] of all positions, [tokens, samples, …] or places of a row."""
    tokens = batch["input_ids"].shape[1]
    if row is None:
        return hidden[:tokens].transpose(0, 1)
    return row.take_apart(hidden[:, 0], tokens)


def _laid(packed: Packed, row: SampleRow) -> Packed:
    hidden = row.lay(packed.hidden.transpose(0, 1))[:, None]
    positions = packed.position_ids
    if positions is not None:  # [3, samples, tokens]
        positions = row.lay(positions.permute(1, 2, 0)).T[:, None].contiguous()
    return replace(packed, hidden=hidden, attention_mask=None, position_ids=positions)


@dataclass(frozen=True)
class Branch:
    """What the language model receives over an edge of the stage graph.

    Attributes:
        modality: whose rows come.
        with_grids: images differ in size, and their grids come with the rows.
        inner_layers: whose outputs the rows have behind those of the last.
    """

    modality: str
    with_grids: bool
    inner_layers: int


@dataclass(frozen=True)
class LanguageTask:
    """What all stages of the language model do besides running its layers.

    Attributes:
        branches: edge of the stage graph -> what is received over it.
        three_axes: tokens have positions of three axes; packing computes them from the grids that
            come with the rows, and each stage sends them to the next. False also where grids do
            not come: then the batch has such positions, if there are any.
        in_row: the samples of a micro-batch are in a row, without padding.
        with_lengths: each stage knows how long samples are without padding; always so in a row.
        feeds: other modules receive the hidden states.
        feeds_rows: modules behind take no padding.
    """

    branches: Mapping[int, Branch]
    three_axes: bool
    in_row: bool
    with_lengths: bool
    feeds: bool
    feeds_rows: bool


class LanguageStage(_LogitsStage):
    """A stage of the language model: words and rows of other modules in, logits out.

    Where modules follow, it also sends them the hidden states of every token as rows.
    """

    def __init__(
        self, place: StagePlace, model: MimoModel, task: LanguageTask, loss_func: OwnLoss | None
    ) -> None:
        super().__init__(place)
        self._model, self._task, self._loss_func = model, task, loss_func

    def _forward(self, given: StageInput, told: Pass) -> StageOutput:
        row = told.row
        if self.first:
            assert given.batch is not None
            packed = self._pack(given.batch, given)
            if row is not None:
                packed = _laid(packed, row)
            combined, mask, positions = packed.hidden, packed.attention_mask, packed.position_ids
            combined = self._cut_of(row).on_rank(combined)
            if torch.is_grad_enabled() and shares_experts(self.wrapped.module.config):
                # A frozen model has no gradient of samples without items, but its experts are
                # those of other replicas, too, which wait for this one in their backward pass.
                combined = combined if combined.requires_grad else combined.requires_grad_()
        else:
            (received,) = given.received.values()
            self._part.set_input_tensor(received.tensor)
            combined, mask = None, self._mask(received.tensor) if row is None else None
            positions = received.positions
        options = {}
        if row is not None:
            options["packed_seq_params"] = row.params(next(self.wrapped.parameters()).device)
        output, hidden, further = run_language(
            self._part,
            self._all_ids(given.batch, row),
            input_ids=None,
            position_ids=positions,
            decoder_input=combined,
            attention_mask=mask,
            **options,
        )
        if not self.last:
            return StageOutput(output, told.lengths, positions=positions)
        if not self._task.feeds:
            return StageOutput(output, logits=output, row=row, further=further)
        assert given.batch is not None
        whole = self._cut_of(row).whole(hidden, summed=False)
        rows = _by_sample(whole, row, given.batch)
        counts = self._rows_sent(given.batch)
        sent = torch.cat([own[:count] for own, count in zip(rows, counts, strict=True)])
        return StageOutput(sent, counts, logits=output, row=row, further=further)

    def further_loss(self, output: StageOutput, batch: Batch | None) -> FurtherLoss | None:
        """Return the loss of tokens further on, by Megatron's weight of it."""
        if not output.further or batch is None:
            return None
        labels, loss_mask = self._targets(batch)
        parts = []
        for logits in output.further:
            labels, loss_mask = one_further(labels), one_further(loss_mask)
            parts.append(masked_loss_sum(*self._losses(output, logits, labels, loss_mask)))
        total = torch.stack([loss for loss, _ in parts]).sum()
        weight = self._part.mtp.mtp_loss_scaling_factor / len(parts)
        return FurtherLoss(
            weight * total, float(total.detach()), sum(tokens for _, tokens in parts)
        )

    def _all_ids(self, batch: Batch | None, row: SampleRow | None) -> torch.Tensor | None:
        if batch is None or not predicts_further(self._part):
            return None
        lengths = sample_lengths(batch, self._model.special_token_ids.values())
        ids = without_padding(batch["input_ids"], lengths)
        return ids if row is None else row.lay(ids)[None]

    def _rows_sent(self, batch: Batch) -> list[int]:
        if self._task.feeds_rows:
            return sample_lengths(batch, self._model.special_token_ids.values())
        samples, tokens = batch["input_ids"].shape
        return [tokens] * samples

    def _told(self, given: StageInput) -> Pass:
        if not self._task.with_lengths:
            return Pass()
        if self.first:
            assert given.batch is not None
            lengths = sample_lengths(given.batch, self._model.special_token_ids.values())
        else:
            (received,) = given.received.values()
            lengths = _samples_of(received)
        return Pass(lengths, self._row_of(lengths) if self._task.in_row else None)

    def _pack(self, batch: Batch, given: StageInput) -> Packed:
        ids, special = batch["input_ids"], self._model.special_token_ids
        check_words(ids, list(special.values()), self._part.vocab_size)
        branches, grids = {}, {}
        for edge, branch in self._task.branches.items():
            received, name = given.received.get(edge), branch.modality
            if received is None:
                continue
            check_rows(ids, special[name], name, _samples_of(received))
            branches[name] = self._rows(received.tensor)
            if branch.with_grids:
                grids[special[name]] = checked_grids(received, name)
        # Positions are rotary, except in a GPTModel of the user's that adds learned ones to words.
        learned = self._part.embedding.add_position_embedding
        places = batch["position_ids"] if learned else None
        words = self._model.get_text_embeddings(ids, places, special)
        positions = batch["position_ids"] if batch["position_ids"].dim() == 3 else None
        if self._task.three_axes:
            positions = three_axis_positions(ids, grids)
        return assemble(ids, special, words, branches, positions)

    def infer(self, given: Mapping[int, Ragged]) -> Ragged:
        """Return the shapes for one sample, from packing on "meta"."""
        width = int(self.wrapped.module.config.hidden_size)
        hidden = [
            hidden_of(sent, self._width_of(edge), self.dtype, self.name)
            for edge, sent in given.items()
        ]
        if self.last and self._task.feeds:
            return Ragged(meta_like((1, width), self.dtype), [1])
        lengths = [1] if self._task.with_lengths else None
        positions = meta_like((3, 1, 1), torch.int64) if self._task.three_axes else None
        if not self.first:
            return Ragged(hidden[0], lengths, positions=positions)
        special = self._model.special_token_ids
        names = [self._task.branches[edge].modality for edge in given]
        branches = dict(zip(names, hidden, strict=True))
        tokens = [special[name] for name, rows in branches.items() for _ in rows]
        words = meta_like((1, width), self.dtype)
        ids = torch.tensor([[*tokens, 1 + max(special.values(), default=0)]])
        packed = assemble(ids, special, words, branches).hidden[..., :width]
        return Ragged(packed, lengths, positions=positions)

    def _width_of(self, edge: int) -> int:
        branch = self._task.branches.get(edge)
        inner = 0 if branch is None else branch.inner_layers
        return int(self.wrapped.module.config.hidden_size) * (1 + inner)

    @property
    def ends(self) -> bool:
        """Whether this is the last stage."""
        return self.last


class DecoderStage(_LogitsStage):
    """A stage of a text decoder: rows of the language model in, logits and a separate loss out.

    Samples are padded until its ranks can share them evenly.

    Args:
        input_size: width of the rows of the language model.
        in_row: samples are computed in a row, without padding.
    """

    def __init__(self, place: StagePlace, input_size: int, in_row: bool) -> None:
        super().__init__(place)
        self._input_size = input_size
        self._in_row = in_row

    def _forward(self, given: StageInput, told: Pass) -> StageOutput:
        (received,) = given.received.values()
        if told.row is not None:
            return self._forward_row(received, told.row)
        hidden = received.tensor
        if self.first:  # rows are in sample order, with equally many per sample
            samples, width = len(_samples_of(received)), hidden.shape[-1]
            hidden = self._rows(hidden).reshape(samples, -1, width).transpose(0, 1)
            cut = self._cut_of()
            hidden = cut.on_rank(cut.padded(hidden, 0).contiguous())
        output = self._part(hidden, self._mask(hidden))
        return StageOutput(output, logits=output if self.last else None)

    def _told(self, given: StageInput) -> Pass:
        if not self._in_row:
            return Pass()
        (received,) = given.received.values()
        lengths = _samples_of(received)
        return Pass(lengths, self._row_of(lengths))

    def _forward_row(self, received: Ragged, row: SampleRow) -> StageOutput:
        """Do the same with samples in a row, of whose tokens all count."""
        lengths, hidden = _samples_of(received), received.tensor
        if self.first:
            laid = row.lengthened(self._rows(hidden), lengths)[:, None]
            hidden = self._cut_of(row).on_rank(laid.contiguous())
        output = self._part(hidden, None, row.params(hidden.device))
        if self.last:
            return StageOutput(output, logits=output, row=row)
        return StageOutput(output, lengths)

    def infer(self, given: Mapping[int, Ragged]) -> Ragged:
        """Return the shapes for one token."""
        width = int(self.wrapped.module.config.hidden_size)
        for sent in given.values():
            width_taken = self._input_size if self.first else width
            hidden_of(sent, width_taken, self.dtype, self.name)
        return Ragged(meta_like((1, 1, width), self.dtype), [1] if self._in_row else None)

    def _targets(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return targets_of(batch, self.name)
