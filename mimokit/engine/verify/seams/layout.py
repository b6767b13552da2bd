"""Records some steps of a layout on one of its ranks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mimokit.config import ModelSection
from mimokit.engine.bridges.checks import NoCall
from mimokit.engine.device import without_tf32
from mimokit.engine.models.projector import receiver_columns
from mimokit.engine.models.weights import named_parameters
from mimokit.engine.parallel.main_weights import (
    is_held_in_part,
    is_main_weight,
    main_value,
    whole_gradient,
)
from mimokit.engine.parallel.marks import is_of_slice, is_tied_copy, shard_of
from mimokit.engine.pipeline.base_stage import ModuleStage, StageInput, StageOutput
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.run_of_rank import RunOfRank
from mimokit.engine.steps import Step, exhaust
from mimokit.engine.training.optimizer_step import TrainingState, prepared, training_step
from mimokit.engine.verify.routing import Routing, replay_routing
from mimokit.engine.verify.seams.code import lines_of_step
from mimokit.engine.verify.seams.hooks import hook_module
from mimokit.engine.verify.seams.projector import ProjectorHooks
from mimokit.engine.verify.seams.recorder import Recorder
from mimokit.planning.seams import BRIDGE, ROWS, Recording, Seam, SeamPhase, rows_for
from mimokit.step_kinds import StepKind


@without_tf32()
def record_layout(run: RunOfRank, reference: Recording, wholes: Collection[Seam] = ()) -> Recording:
    """Train a layout for as many steps as one process has trained. Collective.

    Args:
        reference: what one process has recorded: epsilons of the optimizer, lengths of samples and
            choices of experts.
    """
    recorder = Recorder(wholes, run.plan.llm_module_name)
    recorder.recording.code.update(lines_of_step(run.plan))
    with prepared(run) as state:
        routing = Routing()
        for name, wrapped in state.model.modules().items():
            hook_module(recorder, name, wrapped.module)
            if any(choices.experts for choices in reference.choices):
                replay_routing(name, wrapped.module, routing)
        if state.model.forward_step is None:
            _watch_stages(recorder, state.model, run.config.model)
        for check in state.model.replica_checks:
            check.checks = NoCall()
        parameters = _Parameters(recorder, state)
        recorder.step = -1
        parameters.tensors(SeamPhase.WEIGHT, weight_value)
        each = zip(reference.epsilons, reference.lengths, reference.choices, strict=True)
        for step, (epsilon, recorder.lengths, choices) in enumerate(each):
            recorder.step = step
            routing.begin(choices)
            state.update.set_epsilon(epsilon)
            if state.update.loss_scale is not None:
                state.update.loss_scale.value = 1.0
            result = exhaust(training_step(state), parameters.observe)
            recorder.number("", "all modules", SeamPhase.NORM, result.grad_norm)
            recorder.recording.losses.append(result.loss)
    return recorder.recording


@dataclass(frozen=True)
class _Parameters:
    recorder: Recorder
    state: TrainingState

    def observe(self, step: Step) -> None:
        if step.name == StepKind.GRAD_SYNC:
            self._accumulated()
        elif step.name == StepKind.OPTIMIZER:
            self.tensors(SeamPhase.REDUCED, whole_gradient)
        elif step.name == StepKind.REPORT:
            self.tensors(SeamPhase.WEIGHT, weight_value)

    def _accumulated(self) -> None:
        for name, wrapped in self.state.model.modules().items():
            execution = self.state.model.plan.executions[name]
            if execution.overlap_reduction:
                continue
            groups = wrapped.ownership.groups
            for path, parameter in named_parameters(wrapped.module).items():
                if not parameter.requires_grad or is_held_in_part(parameter):
                    continue
                # By the table of tensors, not by Megatron's marks, which reductions go by.
                expert = shard_of(parameter).cut.expert is not None
                share = f"replica {(groups.expt_dp if expert else groups.dp_cp).rank()}"
                if is_of_slice(parameter):
                    share += f", slice {groups.tp.rank()}"
                if is_tied_copy(parameter):
                    share += ", last stage"
                gradient: Any = parameter.main_grad  # type: ignore[attr-defined]
                self.recorder.parameter(
                    name, path, SeamPhase.ACCUMULATED, parameter, gradient, share
                )

    def tensors(self, phase: SeamPhase, of: Any) -> None:
        """Record a tensor of every parameter that trains. Collective."""
        for name, wrapped in self.state.model.modules().items():
            for path, parameter in named_parameters(wrapped.module).items():
                tensor = of(parameter)
                if tensor is not None and parameter.requires_grad:
                    self.recorder.parameter(name, path, phase, parameter, tensor)


def weight_value(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return the weight that layers compute with, or what it is rounded from. Collective."""
    weight = main_value(parameter)
    return weight if is_main_weight(parameter, weight) else parameter.detach()


def _watch_stages(recorder: Recorder, model: RankModel, config: ModelSection) -> None:
    """Record the rows that cross between modules, before and after, and their gradients.

    Rows of an encoder that feeds several modules arrive in parts, of which each module has columns.
    """
    graph = model.program.graph
    for index, stage in model.stages.items():
        fed = [
            edge.index for edge in graph.incoming[index]
            if graph.stages[edge.source].module != stage.name
        ]  # fmt: skip
        sources = {edge: graph.stages[graph.edges[edge].source].module for edge in fed}
        parts = {e: receiver_columns(config, name).get(stage.name) for e, name in sources.items()}
        columns = {e: np.arange(own.start, own.stop) for e, own in parts.items() if own is not None}
        rows = {
            edge: ROWS
            if edge in columns
            else rows_for(stage.name, len(model.plan.topology[source]))
            for edge, source in sources.items()
        }
        feeds = stage.last and bool(model.plan.topology[stage.name])
        _watch_stage(recorder, stage, sources, rows, columns, feeds)


def _watch_stage(
    recorder: Recorder,
    stage: ModuleStage,
    sources: dict[int, str],
    arriving: dict[int, str],
    columns: dict[int, NDArray[np.int64]],
    gives_rows: bool,
) -> None:
    """Record what a stage receives and gives.

    Args:
        sources: edge -> the module that rows come from.
        arriving: edge -> the operation of the gradient that the stage gives to them.
        columns: edge -> which columns of the rows arrive, where not all of them do.
    """
    forward, projector = stage.forward, _projector_of(recorder, stage)

    def watched(given: StageInput) -> StageOutput:
        assert given.step is not None, "a schedule runs the stage"
        samples = stage.samples(given.step, given.microbatch)
        for edge, source in sources.items():
            sent = given.received.get(edge)
            if sent is None or not sent.samples:
                continue
            here = samples, sent.samples, columns.get(edge)
            recorder.rows(source, BRIDGE, SeamPhase.FORWARD, sent.tensor, *here)
            gradient_of(recorder, source, arriving[edge], sent.tensor, *here)
        output = forward(given)
        if gives_rows and output.samples:
            counts_given = output.samples
            projector.record(samples, counts_given)
            recorder.rows(stage.name, ROWS, SeamPhase.FORWARD, output.tensor, samples, counts_given)
            gradient_of(recorder, stage.name, BRIDGE, output.tensor, samples, counts_given)
        return output

    stage.forward = watched  # type: ignore[method-assign]


def _projector_of(recorder: Recorder, stage: ModuleStage) -> ProjectorHooks:
    """Hook the projector of a stage; context-parallel ranks have equal shares of its gradients."""
    context = stage.wrapped.ownership.groups.cp
    share = f"context {context.rank()}" if context.size() > 1 else ""
    projector = ProjectorHooks(recorder, stage.name, share)
    projector.hook(stage.wrapped.module)
    return projector


def gradient_of(
    recorder: Recorder,
    source: str,
    operation: str,
    rows: Any,
    samples: Sequence[int],
    counts: list[int],
    columns: NDArray[np.int64] | None = None,
) -> None:
    """Record the gradient of rows, once there is one."""
    if rows.requires_grad:
        rows.register_hook(
            lambda gradient: recorder.rows(
                source, operation, SeamPhase.BACKWARD, gradient, samples, counts, columns
            )
        )
