"""The model in a user's training loop.

The loop calls `model(**batch)` in every layout and gets an output and the loss mask of the batch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from mimokit.config.graph import upstream
from mimokit.engine.bridges.checks import EveryCall
from mimokit.engine.data.batch import ITEMS, Batch, rows_per_sample
from mimokit.engine.data.check import check_call, check_cut
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.parallel.loss import vocab_parallel_cross_entropy
from mimokit.engine.pipeline.base_stage import FurtherLoss, StageInput, StageOutput
from mimokit.engine.pipeline.language_stages import values_on_rank
from mimokit.engine.pipeline.loaded_batch import shares_items
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.ragged import samples_of
from mimokit.planning.schedule import StageEdge

Output = tuple[torch.Tensor, torch.Tensor | None]
"""Loss of every token [samples, tokens], or what the next stage takes; and the loss mask."""


class ModulesByName(torch.nn.ModuleDict):
    """A `torch.nn.ModuleDict` with the `get` of a dictionary."""

    def get(self, name: str, default: torch.nn.Module | None = None) -> torch.nn.Module | None:
        """Return a module by its name, or the default."""
        return dict(self.items()).get(name, default)


class MimoModelOnRank(torch.nn.Module):
    """The modules that a rank holds, wrapped with data parallel.

    Attributes:
        modality_submodules: encoder -> module.
        language_model: None on a rank that holds no part of it.
        decoders: module behind the language model -> module.
        further: loss of tokens further on in the last call, of labels and loss mask that it took,
            as Megatron's model adds it to the graph; None where it took none, or predicts none.
    """

    def __init__(self, laid_out: RankModel) -> None:
        super().__init__()
        model = laid_out.model
        self.laid_out = laid_out
        self.modality_submodules = ModulesByName(dict(model.modality_submodules.items()))
        self.language_model: ModuleDataParallel | None = model.language_model
        self.language_module_name = model.language_module_name
        self.decoders = model.decoders
        self.further: FurtherLoss | None = None

    def parts(self) -> Iterator[tuple[str, ModuleDataParallel]]:
        """Yield the modules with their names: encoders, language model, decoders."""
        return self.laid_out.model.parts()

    def release(self) -> None:
        """Remove the gradient hooks after the loop; see `ModuleDataParallel.release`."""
        for _, module in self.parts():
            module.release()

    def _losses(
        self, output: StageOutput, labels: torch.Tensor | None, loss_mask: torch.Tensor | None
    ) -> Output:
        """Return the loss of every token, or without labels the logits; and the loss mask.

        Context-parallel ranks have different tokens of the same samples.
        """
        assert self.language_model is not None
        assert output.logits is not None
        model = self.language_model.module
        self.further = None
        if labels is not None and loss_mask is not None:
            targets = {"labels": labels, "loss_mask": loss_mask}
            self.further = self.laid_out.last_stage.further_loss(output, targets)
        loss_mask = None if loss_mask is None else values_on_rank(model, output, loss_mask)
        if labels is None:
            return output.logits, loss_mask
        labels = values_on_rank(model, output, labels)
        group = model.pg_collection.tp
        return vocab_parallel_cross_entropy(output.logits, labels, group), loss_mask


class SharedRanksModel(MimoModelOnRank):
    """A model whose modules share all ranks: homogeneous or colocated.

    Attributes:
        module_tokens: module -> number of tokens that the last call computed on this rank.
        checks: of the bridges; by default every call checks.
    """

    def __init__(self, laid_out: RankModel) -> None:
        super().__init__(laid_out)
        self.module_tokens: dict[str, int] = {}
        self.checks = EveryCall()
        self.place = StageInput(None)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        modality_inputs: Mapping[str, Batch] | None = None,
        labels: torch.Tensor | None = None,
        loss_mask: torch.Tensor | None = None,
        **others: Any,
    ) -> Output:
        """Run encoders, bridges and the language model. Collective over the gather groups.

        Args:
            input_ids: [samples, tokens], the samples that the language model has on this rank.
            position_ids: of the same samples, see `mimokit.engine.data.batch`.
            modality_inputs: the samples that each encoder has on this rank.
            others: what else a batch may hold, see `mimokit.engine.data.batch`.

        Returns:
            Loss of every token [samples, tokens / CP], or without labels the logits
            [samples, tokens / CP, vocabulary / TP]; and the loss mask of these tokens.

        Raises:
            ValueError: a module has other samples than its replica computes, or no stage reads one
                of the others.
        """
        check_call(others)
        self._check_cuts(len(input_ids), modality_inputs or {})
        self.module_tokens = {self.language_module_name: input_ids.numel()}
        batch = {"input_ids": input_ids, "position_ids": position_ids, "loss_mask": loss_mask}
        batch |= others
        given = {
            index: replace(self.place, batch=batch, received={}) for index in self.laid_out.stages
        }
        for edge in self.laid_out.program.graph.edges:
            self._encode(edge, modality_inputs or {}, given)
        *_, language = given.values()
        return self._losses(self.laid_out.last_stage.forward(language), labels, loss_mask)

    def _check_cuts(self, samples: int, inputs: Mapping[str, Batch]) -> None:
        plan, language = self.laid_out.plan, self.language_module_name
        given = {name: len(inputs[name][ITEMS]) for name in plan.modules if name in inputs}
        for name, count in {**given, language: samples}.items():
            start, stop = plan.batch.modules[name].samples[dist.get_rank()]
            replicas = plan.modules[name].data_parallel
            check_cut(name, count, stop - start, replicas, is_language=name == language)

    def _encode(
        self, edge: StageEdge, inputs: Mapping[str, Batch], given: Mapping[int, StageInput]
    ) -> None:
        name, bridge = edge.modality, self.laid_out.bridges[edge.modality]
        source, target = given[edge.source], given[edge.destination]
        own = self._rows(name, inputs, source)
        if own is None:
            return
        assert source.batch is not None
        ids = source.batch["input_ids"]
        if bridge.plan.destination == self.language_module_name:
            here = self._placeholders(name, ids)
            rows = own if bridge.plan.direction == "fan_out" else here
        else:
            rows = bridge.rows_of_group(own)
            here = bridge.rows_kept(rows)
        if not sum(rows) and not shares_items(self.laid_out.modules()[name]):
            return
        batch = {"input_ids": ids, "modality_inputs": inputs}
        trained = bool(self.laid_out.program.schedule.work.backward[edge.source].any())
        with torch.set_grad_enabled(trained and torch.is_grad_enabled()):
            encoded = self.laid_out.stages[edge.source].forward(replace(source, batch=batch))
        output = encoded.tensor
        self.module_tokens[name] = len(output)
        # Also without items on this rank: all ranks of a gather group take part in the backward.
        if not len(output):
            output = output + sum(sent.tensor.sum() for sent in source.received.values())
        trained = trained and torch.is_grad_enabled()
        output = output.requires_grad_() if trained and not output.requires_grad else output
        sent = encoded.carrying(output if trained else output.detach())
        target.received[edge.index] = replace(bridge.carry(sent, rows), samples=here)

    def _rows(self, name: str, inputs: Mapping[str, Batch], given: StageInput) -> list[int] | None:
        if name in self.laid_out.tokens_per_item:
            of_module = inputs.get(name)
            if of_module is None:
                return None
            count = self.laid_out.tokens_per_item[name]
            return rows_per_sample(of_module, len(of_module[ITEMS]), count).tolist()
        start, stop = self.laid_out.plan.batch.modules[name].samples[dist.get_rank()]
        crossed = [samples_of(sent) for sent in given.received.values()]
        return [sum(of_sample) for of_sample in zip([0] * (stop - start), *crossed, strict=True)]

    def _placeholders(self, name: str, ids: torch.Tensor) -> list[int]:
        tokens, before = self.laid_out.special_token_ids, upstream(self.laid_out.topology, name)
        # On shared ranks there is one path.
        (token,) = next(tokens[encoder] for encoder in tokens if encoder in {name, *before})
        counts: list[int] = (ids == token).sum(dim=1).tolist()
        return counts


class StageModel(MimoModelOnRank):
    """A pipeline stage of one module, of a heterogeneous model.

    The schedule passes what the stages before it sent; then the user's forward step calls it.

    Attributes:
        received: what the stages before it sent, of the current micro-batch.
        computed: what the last call gave; None before the first.
    """

    def __init__(self, laid_out: RankModel) -> None:
        super().__init__(laid_out)
        self.take(StageInput(None))

    def take(self, given: StageInput) -> None:
        """Take what the stages before it sent, of the next micro-batch."""
        self.received, self.calls = given, 0
        self.computed: StageOutput | None = None

    def forward(self, **batch: Any) -> Output:
        """Run this stage on what this rank has read of the micro-batch.

        Returns:
            At the end of the language model the loss of every token [samples, tokens / CP], or
            without labels the logits [samples, tokens / CP, vocabulary / TP], and the loss mask of
            these tokens; on all other stages what the next stage takes, and None.

        Raises:
            ValueError: no stage reads something of the batch.
        """
        check_call(batch)
        self.calls += 1
        stage = self.laid_out.last_stage
        self.computed = stage.forward(replace(self.received, batch=batch or None))
        if not stage.ends or self.computed.logits is None:
            return self.computed.tensor, None
        return self._losses(self.computed, batch.get("labels"), batch.get("loss_mask"))
