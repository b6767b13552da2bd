"""Records the same steps in one process."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch

from mimokit.engine.data.batch import Batch, item_tokens, sample_lengths
from mimokit.engine.device import without_tf32
from mimokit.engine.models.rng import mask_rows
from mimokit.engine.run_of_rank import RunOfRank
from mimokit.engine.verify.oracle import OneProcess, OracleStart
from mimokit.engine.verify.seams.hooks import hook_module
from mimokit.engine.verify.seams.layout import gradient_of
from mimokit.engine.verify.seams.projector import ProjectorHooks
from mimokit.engine.verify.seams.recorder import Recorder
from mimokit.engine.verify.whole_model import WholeModel
from mimokit.planning.expert_choices import ExpertChoices
from mimokit.planning.seams import BRIDGE, ROWS, Recording, Seam, SeamPhase, rows_for


@without_tf32()
def record_one_process(
    run: RunOfRank,
    steps: int,
    begin: OracleStart,
    wholes: Collection[Seam] = (),
    in_row: bool = False,
    choices: Sequence[ExpertChoices] = (),
) -> Recording:
    """Train the model of a layout in one process; see `run_oracle`.

    Args:
        in_row: the layout puts samples in a row, without padding, which is not recorded then.
        choices: of experts, which tokens take in every step; none: their own.
    """
    config, recorder = run.config, Recorder(wholes, run.plan.llm_module_name)
    process = OneProcess(run, begin)
    _watch_model(recorder, process.model)
    if in_row:
        placeholders = tuple(config.model.special_token_ids.values())
        process.model.loss_sum = _with_lengths(recorder, process.model, placeholders)  # type: ignore
    recorder.step = -1
    _record_weights(recorder, process)
    largest_norm = 1.0
    for step in range(steps):
        recorder.step, recorder.lengths = step, {}
        loss = process.accumulate(choices[step] if choices else None)
        for name, path, parameter, stepped in process.trained():
            gradient: Any = stepped.grad
            whole = gradient * process.tokens
            recorder.parameter(name, path, SeamPhase.ACCUMULATED, parameter, whole)
            recorder.parameter(name, path, SeamPhase.REDUCED, parameter, gradient)
        recorder.number("", "all modules", SeamPhase.NORM, process.norm())
        largest_norm = max(largest_norm, process.clip())
        epsilon = config.inner_runtime.adam_epsilon * largest_norm
        process.set_epsilon(epsilon)
        process.update()
        _record_weights(recorder, process)
        recorder.recording.epsilons.append(epsilon)
        recorder.recording.lengths.append(recorder.lengths)
        recorder.recording.losses.append(loss)
        recorder.recording.choices.append(process.routing.made)
        apart = max(recorder.recording.scores_apart, process.routing.rerouted.scores)
        recorder.recording.scores_apart = apart
    return recorder.recording


def _record_weights(recorder: Recorder, process: OneProcess) -> None:
    for name, path, parameter, stepped in process.trained():
        recorder.parameter(name, path, SeamPhase.WEIGHT, parameter, stepped)


def _watch_model(recorder: Recorder, model: WholeModel) -> None:
    for name, module in model.parts():
        hook_module(recorder, name, module)
    for name, module in model.modality_submodules.items():
        projector = ProjectorHooks(recorder, name)
        projector.hook(module)
        module.forward = _with_rows(recorder, model, name, module.forward, projector)
    if model.decoders:
        model.rows_of = _Hidden(recorder, model).of_decoder  # type: ignore


def _with_lengths(
    recorder: Recorder, model: WholeModel, placeholders: Sequence[int]
) -> Callable[[Batch], tuple[torch.Tensor, float]]:
    loss_sum = model.loss_sum

    def noted(batch: Batch) -> tuple[torch.Tensor, float]:
        lengths = zip(model.samples, sample_lengths(batch, placeholders), strict=True)
        recorder.lengths = {**recorder.lengths, **dict(lengths)}
        return loss_sum(batch)

    return noted


def _with_rows(
    recorder: Recorder, model: WholeModel, name: str, forward: Any, projector: ProjectorHooks
) -> Any:
    def watched(*given: Any, **named: Any) -> Any:
        rows = forward(*given, **named)
        items = model.items_of(name)
        tokens = item_tokens(named.get("encoder_inputs") or given[0])
        samples, counts = model.samples, [0] * len(model.samples)
        computed = mask_rows(model.step, samples, items)
        each = [len(rows) // max(1, sum(items))] * sum(items) if tokens is None else tokens.tolist()
        for sample, count in zip(computed.samples.tolist(), each, strict=True):
            counts[samples.index(sample)] += count
        projector.record(samples, counts)
        _twice(recorder, name, rows, samples, counts)
        return rows

    return watched


def _twice(
    recorder: Recorder, name: str, rows: torch.Tensor, samples: Sequence[int], counts: list[int]
) -> None:
    for operation in (ROWS, BRIDGE):
        recorder.rows(name, operation, SeamPhase.FORWARD, rows, samples, counts)
    for operation in (ROWS, BRIDGE):
        gradient_of(recorder, name, operation, rows, samples, counts)


class _Hidden:
    """Records the hidden states [tokens, samples, hidden] that decoders take as rows.

    They take them from a view: its gradient leaves out that of the language model's loss, which no
    bridge carries.
    """

    def __init__(self, recorder: Recorder, model: WholeModel) -> None:
        self._recorder, self._model = recorder, model
        self._of: torch.Tensor | None = None
        self._taken: torch.Tensor | None = None

    def of_decoder(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        taken = self._watched(hidden)
        own = taken.view_as(taken)
        self._gradient(rows_for(name, len(self._model.decoders)), own)
        return own

    def _watched(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._taken is None or self._of is not hidden:
            self._of, self._taken = hidden, hidden.view_as(hidden)
            for operation in (ROWS, BRIDGE):
                self._record(operation, SeamPhase.FORWARD, hidden)
            self._gradient(BRIDGE, self._taken)
        return self._taken

    def _gradient(self, operation: str, taken: torch.Tensor) -> None:
        if taken.requires_grad:
            taken.register_hook(partial(self._record, operation, SeamPhase.BACKWARD))  # type: ignore[no-untyped-call]

    def _record(self, operation: str, phase: SeamPhase, tensor: torch.Tensor) -> None:
        rows = tensor.transpose(0, 1).flatten(0, 1)
        counts, samples = [len(tensor)] * tensor.shape[1], self._model.samples
        name = self._model.language_module_name
        self._recorder.rows(name, operation, phase, rows, samples, counts)
