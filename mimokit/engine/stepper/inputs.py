"""Compares what encoders are called with to what one process reads for the same samples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from mimokit.config import ExperimentSections
from mimokit.engine.data.batch import ITEMS, encoder_tensors, in_dtype
from mimokit.engine.data.iterators import PlannedBatches, order_of
from mimokit.engine.data.sources import TrainingData
from mimokit.engine.models.chunks import chunks_of
from mimokit.engine.models.patches import GRID
from mimokit.engine.pipeline.base_stage import ModuleStage
from mimokit.engine.stepper.rows import CrossingRows, copied, prints_of
from mimokit.engine.training.optimizer_step import TrainingState
from mimokit.planning.stepper import Crossing, SeenCrossing
from mimokit.planning.stepper.crossings import INPUT

Note = Callable[[SeenCrossing, CrossingRows], None]
Inputs = Mapping[str, torch.Tensor]


class SingleReader:
    """Reads samples as one process would, which has the whole micro-batch."""

    def __init__(self, state: TrainingState) -> None:
        plan, config, data = state.model.plan, state.config, state.data
        self._data: TrainingData = data
        self._in_step = plan.batch.num_microbatches
        self._numbers = enumerate(self._microbatches(state, config))
        self._of_step: dict[int, list[int]] = {}

    def _microbatches(
        self, state: TrainingState, config: ExperimentSections
    ) -> Iterator[list[int]]:
        batch, data = state.model.plan.batch, self._data.train
        return iter(
            PlannedBatches(
                min(len(data), config.data.dataset_size),  # type: ignore[arg-type]
                batch.samples_per_microbatch,
                (0, batch.samples_per_microbatch),
                config.runtime.seed,
                first=state.iteration * self._in_step,
                num_microbatches=self._in_step,
                order=order_of(config, state.model.plan, data),
                turn=(batch.replica, batch.replicas),
            )
        )

    def inputs(self, module: str, samples: Sequence[int], count: int) -> Mapping[str, Any] | None:
        """Return the inputs of a module for samples of a micro-batch; None if there are none.

        Args:
            count: of the micro-batch since the session began, of the latest step so far or later.
        """
        while count not in self._of_step:
            number, microbatch = next(self._numbers)
            self._of_step[number] = microbatch
            self._of_step.pop(number - self._in_step, None)
        items = [self._data.train[self._of_step[count][sample]] for sample in samples]
        inputs: Mapping[str, Any] = self._data.collate_fn(items).get("modality_inputs") or {}
        return inputs.get(module)


class InputWatch:
    """Notes the inputs of the encoders on this rank, next to those of one process.

    Attributes:
        microbatch: that is computed; None outside of forward steps.
    """

    def __init__(self, state: TrainingState, note: Note) -> None:
        self.microbatch: int | None = None
        self._note, self._state = note, state
        self._one_process = SingleReader(state)
        self._begun = state.iteration
        model = state.model
        for stage in model.stages.values():
            if stage.first and stage.name != model.language_module_name:
                self._watch(stage)

    def _watch(self, stage: ModuleStage) -> None:
        """Hook the encoder of a stage; those that share their items take those of other ranks."""
        encoders = getattr(chunks_of(stage.wrapped.module)[0], "encoders", {})
        if len(encoders) != 1:
            return
        (encoder,) = encoders.values()
        if getattr(encoder, "shares_items", False):
            return
        if stage.last:
            hook = partial(self._called, stage)
            encoder.register_forward_pre_hook(hook, with_kwargs=True)
        else:
            embed = encoder.embed

            def watched(**inputs: torch.Tensor) -> torch.Tensor:
                self._called(stage, encoder, (), inputs)
                rows: torch.Tensor = embed(**inputs)
                return rows

            encoder.embed = watched

    def _called(self, stage: ModuleStage, _: Any, args: Any, inputs: Inputs) -> None:
        if self.microbatch is None or not inputs:
            return
        model, rank = self._state.model, dist.get_rank()
        start, stop = model.plan.batch.modules[stage.name].samples[rank]
        in_step = model.plan.batch.num_microbatches
        count = (self._state.iteration - self._begun) * in_step + self.microbatch
        wanted = self._one_process.inputs(stage.name, range(start, stop), count)
        if wanted is None:
            return
        tensors = in_dtype(encoder_tensors(stage.name, wanted), stage.dtype)
        name = max(tensors, key=lambda each: tensors[each].numel())
        if name not in inputs:
            return
        counts = _items_per_sample(tensors, wanted[ITEMS], name)
        right, came = _alike(_items_first(tensors, name), _items_first(inputs, name))
        crossing = Crossing(INPUT, stage.name, False, self.microbatch, rank, rank, start, stop)
        for sent, rows in ((True, right), (False, came)):
            copy = copied(rows)
            piece = SeenCrossing(
                crossing, sent, tuple(rows.shape), rows.nbytes, prints_of(copy, counts)
            )
            self._note(piece, CrossingRows(copy, copy if sent else None))


def _items_first(tensors: Inputs, name: str) -> torch.Tensor:
    tensor = tensors[name]
    of_samples = name == "hidden_states" and GRID not in tensors
    return tensor.transpose(0, 1) if of_samples else tensor


def _items_per_sample(tensors: Inputs, items: Any, name: str) -> list[int]:
    counts: list[int] = torch.as_tensor(items).tolist()
    if name != "hidden_states":
        return counts
    if GRID not in tensors:
        return [1] * len(counts)
    patches = iter(torch.as_tensor(tensors[GRID]).prod(dim=1).tolist())
    return [sum(next(patches) for _ in range(count)) for count in counts]


def _alike(right: torch.Tensor, came: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut what is padded to the longest item of a batch, which depends on who reads with whom."""
    right, came = right.detach().cpu(), came.detach().cpu()
    if right.dim() != came.dim():
        return right, came
    for dimension in range(1, right.dim()):
        size = min(right.shape[dimension], came.shape[dimension])
        right, came = (each.narrow(dimension, 0, size) for each in (right, came))
    return right, came
