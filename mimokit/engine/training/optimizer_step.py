"""One optimizer step of a rank, and what it takes: model, update and data."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from mimokit.config import ExperimentSections
from mimokit.config.user_code import NO_CODE, UserCode
from mimokit.engine.bridges.checks import EveryCall
from mimokit.engine.data.batch import Batch
from mimokit.engine.data.iterators import drawn_places, iterate_batches, order_of
from mimokit.engine.data.sources import TrainingData, data_of
from mimokit.engine.device import close_groups_since, open_groups
from mimokit.engine.megatron.cpu import share_cores
from mimokit.engine.models.frame_parallel import patch_encoders
from mimokit.engine.parallel.loss import one_over
from mimokit.engine.parallel.update import MainGradUpdate, update_of_run
from mimokit.engine.pipeline.executor import MicrobatchLoss
from mimokit.engine.pipeline.model import RankModel, build_rank_model
from mimokit.engine.pipeline.steps import forward_backward_steps
from mimokit.engine.run_of_rank import RunOfRank
from mimokit.engine.steps import Step, StepGenerator
from mimokit.engine.training.expert_loads import ExpertLoads
from mimokit.engine.training.memory import telling_what_is_held
from mimokit.engine.training.step_counts import StepCounts, sum_numbers
from mimokit.engine.user_loop.stages import with_forward_step
from mimokit.planning.replicas import strategies
from mimokit.planning.types import LayoutPlan
from mimokit.step_kinds import StepKind

if TYPE_CHECKING:
    from mimokit.engine.checkpoints.saver import Saver
    from mimokit.engine.training.tracer import Arrivals


@dataclass
class TrainingState:
    """The state of training on one rank.

    `checks` are those of modules' outputs; by default every call checks.
    """

    model: RankModel
    update: MainGradUpdate
    data: TrainingData
    iterator: Iterator[Batch] | None
    config: ExperimentSections
    arrivals: Arrivals | None = None
    iteration: int = 0
    saver: Saver | None = None
    checks: EveryCall = field(default_factory=EveryCall)

    @cached_property
    def expert_loads(self) -> ExpertLoads:
        """What counts the tokens of experts."""
        return ExpertLoads(self.model, self.config.model)


@dataclass(frozen=True)
class StepResult:
    """The result of one optimizer step, over all ranks.

    Attributes:
        loss: mean over the unmasked tokens of the step, including those of modules behind the
            language model.
        further_loss: column -> mean over the unmasked tokens further on, where some are predicted,
            and over the rows of an image decoder.
        grad_norm: norm over all modules, before clipping.
        module_tokens: module -> number of tokens it computed.
        expert_loads: module -> load of its experts, [layers, experts]; see `ExpertLoads`.
    """

    loss: float
    further_loss: dict[str, float]
    num_tokens: int
    grad_norm: float
    module_tokens: dict[str, int]
    expert_loads: dict[str, NDArray[np.float64]]
    stop: bool


def build_model(
    plan: LayoutPlan, config: ExperimentSections, code: UserCode = NO_CODE
) -> RankModel:
    """Build the model of a layout on this rank. Collective."""
    model = build_rank_model(config.model, plan, config.runtime.seed, code)
    patch_encoders(config, model.modules(), model.pg_collections)
    return model


def prepare(run: RunOfRank, begun: int = 0) -> TrainingState:
    """Build model, optimizer and data of this rank. Collective.

    Args:
        begun: steps that were done before; see `go_on`.
    """
    share_cores()
    plan, config = run.plan, run.config
    model = build_model(plan, config, run.code.completed(config.runtime))
    model = replace(model, step_numbers=itertools.count(begun))
    kind: Callable[..., MainGradUpdate] = MainGradUpdate
    if run.peers is not None:
        kind = strategies().update_of_replica(run.peers, model.modules())
    update = update_of_run(config, plan, model.modules(), model.module_to_grid_map, kind)
    data = data_of(run.source, config)
    order, seed = order_of(config, plan, data.train), config.runtime.seed
    if order is not None:
        model.number_samples(drawn_places(plan, config.data, data.train, seed, order))
    iterator = iterate_batches(
        plan, config.data, dist.get_rank(), data.train, data.collate_fn, seed, order, begun
    )
    return TrainingState(model, update, data, iterator, config, iteration=begun)


@contextlib.contextmanager
def prepared(
    run: RunOfRank, make: Callable[[RunOfRank], TrainingState] = prepare
) -> Iterator[TrainingState]:
    """Prepare a training state, and release its model at the end. Collective.

    Args:
        make: `prepare`, or `go_on`.

    Its process groups are closed if the block raises no error; after an error every rank leaves the
    world anyway.
    """
    before = open_groups()
    with telling_what_is_held("while the model was built", dict):
        state = make(run)
    try:
        yield state
    finally:
        for module in state.model.modules().values():
            module.release()
    state.update.end()
    close_groups_since(before)


def training_step(state: TrainingState, stop: bool = False) -> StepGenerator[StepResult]:
    """Yield the steps of one optimizer step: micro-batches, reduction, update.

    Gradients are reduced and scaled before the optimizer steps on them. Where replicas average
    them, the norm of the average is part of that exchange.
    """
    update = state.update
    state.checks.begin_step()
    update.zero()
    model = state.model
    if model.forward_step is not None:
        model = with_forward_step(model, model.forward_step)
    losses = yield from forward_backward_steps(state.iterator, model)
    yield Step(StepKind.GRAD_SYNC)
    update.reduce()
    yield from update.exchange_gradients()
    norm = update.norm()
    yield Step(StepKind.OPTIMIZER)
    update.clip(norm)
    update.step()
    yield from update.exchange_weights()
    state.iteration += 1
    yield Step(StepKind.REPORT)
    return _reduce(state, losses, norm, stop)


def _reduce(
    state: TrainingState, losses: list[MicrobatchLoss], norm: float, stop: bool
) -> StepResult:
    arrivals, counts = state.arrivals, StepCounts.of_rank(state.model, losses)
    summed = sum_numbers(
        {
            "stop": [float(stop)],
            **counts.numbers(),
            "experts": state.expert_loads.to_sum(),
            "arrivals": [] if arrivals is None else arrivals.to_sum(),
        }
    )
    if arrivals is not None:
        arrivals.take(summed["arrivals"])
    counts = counts.of_numbers(summed)
    return StepResult(
        loss=counts.loss.total * one_over(counts.loss.number),
        further_loss=counts.further_losses,
        num_tokens=round(counts.loss.number),
        grad_norm=norm,
        module_tokens=counts.module_tokens,
        expert_loads=state.expert_loads.of_step(summed["experts"], counts.module_tokens),
        stop=summed["stop"][0] > 0,
    )
