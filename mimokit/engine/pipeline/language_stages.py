"""The stages of the language model, and of text decoders behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from mimokit.config.user_code import OwnLoss
from mimokit.engine.data.batch import (
    Batch,
    one_further,
    sample_lengths,
    targets_of,
    without_padding,
)
from mimokit.engine.data.check import check_words
from mimokit.engine.megatron import GPTModel, MimoModel
from mimokit.engine.models.experts import shares_experts
from mimokit.engine.models.language import run_language
from mimokit.engine.models.patches import three_axis_positions
from mimokit.engine.models.token_prediction import predicts_further
from mimokit.engine.models.transformer import causal_mask
from mimokit.engine.parallel.context import SequenceCut, for_all_ranks
from mimokit.engine.parallel.loss import loss_sum, masked_loss_sum, vocab_parallel_cross_entropy
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
from mimokit.engine.ragged import Ragged, samples_of


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
    """What the language model receives over an edge of the stage graph."""

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
            lengths = samples_of(received)
        return Pass(lengths, self._row_of(lengths) if self._task.in_row else None)

    def _pack(self, batch: Batch, given: StageInput) -> Packed:
        ids, special = batch["input_ids"], self._model.special_token_ids
        check_words(ids, list(special.values()), self._part.vocab_size)
        branches, grids = {}, {}
        for edge, branch in self._task.branches.items():
            received, name = given.received.get(edge), branch.modality
            if received is None:
                continue
            check_rows(ids, special[name], name, samples_of(received))
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
            samples, width = len(samples_of(received)), hidden.shape[-1]
            hidden = self._rows(hidden).reshape(samples, -1, width).transpose(0, 1)
            cut = self._cut_of()
            hidden = cut.on_rank(cut.padded(hidden, 0).contiguous())
        output = self._part(hidden, self._mask(hidden))
        return StageOutput(output, logits=output if self.last else None)

    def _told(self, given: StageInput) -> Pass:
        if not self._in_row:
            return Pass()
        (received,) = given.received.values()
        lengths = samples_of(received)
        return Pass(lengths, self._row_of(lengths))

    def _forward_row(self, received: Ragged, row: SampleRow) -> StageOutput:
        lengths, hidden = samples_of(received), received.tensor
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
