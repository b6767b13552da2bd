"""The training loop of a rank."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from mimokit.config import ExperimentConfig
from mimokit.config.runtime import Evaluations
from mimokit.config.user_code import NO_CODE, UserCode
from mimokit.engine.checkpoints.data import data_position
from mimokit.engine.checkpoints.loading import check_together, load
from mimokit.engine.checkpoints.saver import Saver
from mimokit.engine.colocated.checks import EveryCall
from mimokit.engine.data.batch import Batch
from mimokit.engine.data.iterators import drawn_places, iterate_batches, order_of
from mimokit.engine.data.sources import DataSource, TrainingData, data_of, default_data
from mimokit.engine.device import close_groups_since, open_groups, products_of, rank_device
from mimokit.engine.inside_steps import listening
from mimokit.engine.models.frame_parallel import patch_encoders
from mimokit.engine.parallel.loss import one_over
from mimokit.engine.parallel.update import MainGradUpdate, update_of_run
from mimokit.engine.pipeline.executor import MicrobatchLoss
from mimokit.engine.pipeline.model import RankModel, build_rank_model
from mimokit.engine.pipeline.steps import forward_backward_steps
from mimokit.engine.replicas import Peers
from mimokit.engine.steps import Step, StepGenerator, exhaust, observed_by
from mimokit.engine.training.evaluation import check_validation, emit_evaluation, evaluate
from mimokit.engine.training.expert_loads import ExpertLoads, with_loads
from mimokit.engine.training.health import CollectiveCount, health_sample
from mimokit.engine.training.loop_monitor import (
    counts_on_rank,
    create_performance_monitor,
    further_columns,
    further_losses,
)
from mimokit.engine.training.module_bytes import (
    ACTIVATIONS,
    KeptBytes,
    bytes_of_states,
    telling_what_is_held,
)
from mimokit.engine.training.monitor import PerformanceMonitor, watch
from mimokit.engine.training.profiling import profiler
from mimokit.engine.training.saving import save_hf
from mimokit.engine.training.tracer import Arrivals, Tracer, align_clocks
from mimokit.engine.user_loop.stages import with_forward_step
from mimokit.planning import checkpoints
from mimokit.planning.checkpoint_files import check_save, without_digests
from mimokit.planning.replicas import strategies
from mimokit.planning.types import LayoutPlan
from mimokit.samples import Emit, StepSample
from mimokit.step_kinds import StepKind

ShouldStop = Callable[[], bool]


@dataclass
class TrainingState:
    """The state of training on one rank.

    `checks` are those of modules' outputs; by default every call checks.
    """

    model: RankModel
    update: MainGradUpdate
    data: TrainingData
    iterator: Iterator[Batch] | None
    config: ExperimentConfig
    arrivals: Arrivals | None = None
    iteration: int = 0
    saver: Saver | None = None
    checks: EveryCall = field(default_factory=EveryCall)

    @cached_property
    def expert_loads(self) -> ExpertLoads:
        """What counts the tokens of experts."""
        return ExpertLoads(self.model, self.config.model)


@dataclass(frozen=True)
class Watchers:
    """Who watches a run; None for what the config or the caller left out."""

    emit: Emit
    monitor: PerformanceMonitor | None
    tracer: Tracer | None
    collectives: CollectiveCount
    kept: KeptBytes


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


def build_model(plan: LayoutPlan, config: ExperimentConfig, code: UserCode = NO_CODE) -> RankModel:
    """Build the model of a layout on this rank. Collective."""
    model = build_rank_model(config.model, plan, config.runtime.seed, code)
    patch_encoders(config, model.modules(), model.pg_collections)
    return model


def prepare(
    plan: LayoutPlan,
    config: ExperimentConfig,
    source: DataSource,
    peers: Peers | None = None,
    code: UserCode = NO_CODE,
) -> TrainingState:
    """Build model, optimizer and data of this rank, or go on from a checkpoint. Collective."""
    # More threads would compete for cores with the other ranks of this machine.
    if rank_device().type == "cpu":
        torch.set_num_threads(1)
    saved = _saved_state(config, peers)
    begun = 0 if saved is None else saved.step
    model = build_model(plan, config, code.completed(config.runtime))
    model = replace(model, step_numbers=itertools.count(begun))
    kind: Callable[..., MainGradUpdate] = MainGradUpdate
    if peers is not None:
        kind = strategies().update_of_replica(peers, model.modules())
    update = update_of_run(config, plan, model.modules(), model.module_to_grid_map, kind)
    data, rank = data_of(source, config), dist.get_rank()
    order, seed = order_of(config, plan, data.train), config.runtime.seed
    if order is not None:
        model.number_samples(drawn_places(plan, config.data, data.train, seed, order))
    iterator = iterate_batches(
        plan, config.data, rank, data.train, data.collate_fn, seed, order, begun
    )
    if saved is not None:
        checkpoints.check_same_data(saved, data_position(config, plan, data, rank))
        load(saved, config, model, update, rank)
    return TrainingState(model, update, data, iterator, config, iteration=begun)


def _saved_state(config: ExperimentConfig, peers: Peers | None) -> checkpoints.Checkpoint | None:
    if config.runtime.resume_from is None:
        return None
    whole = saved = checkpoints.read_checkpoint(config.runtime.resume_from)
    checkpoints.check_same_replicas(whole, config)
    if peers is not None and peers.replica:
        saved = checkpoints.read_checkpoint(
            whole.directory / checkpoints.folder_of_replica(peers.replica)
        )
        check_save(saved, whole)
    elif dist.get_rank() == 0 and (sentence := without_digests(whole)):
        print(sentence, flush=True)
    check_together(saved)
    return saved


@contextlib.contextmanager
def prepared(
    plan: LayoutPlan,
    config: ExperimentConfig,
    source: DataSource,
    peers: Peers | None = None,
    code: UserCode = NO_CODE,
) -> Iterator[TrainingState]:
    """Prepare a training state, and release its model at the end. Collective.

    Its process groups are closed if the block raises no error; after an error every rank leaves the
    world anyway.
    """
    before = open_groups()
    with telling_what_is_held("while the model was built", dict):
        state = prepare(plan, config, source, peers, code)
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
    model, arrivals = state.model, state.arrivals
    names = list(model.plan.modules)
    of_experts = state.expert_loads.to_sum()
    values = [
        float(stop),
        *counts_on_rank(model, losses),
        *of_experts,
        *(() if arrivals is None else arrivals.to_sum()),
    ]
    total = torch.tensor(values, dtype=torch.float64, device=rank_device())
    dist.all_reduce(total)
    stops, loss, tokens, *rest = total.tolist()
    columns = further_columns(model.plan).values()
    further, rest = rest[: 2 * len(columns)], rest[2 * len(columns) :]
    modules, rest = rest[: len(names)], rest[len(names) :]
    of_experts, arrived = rest[: len(of_experts)], rest[len(of_experts) :]
    if arrivals is not None:
        arrivals.take(arrived)
    module_tokens = {name: round(value) for name, value in zip(names, modules, strict=True)}
    return StepResult(
        loss=loss * one_over(tokens),
        further_loss=further_losses(columns, further),
        num_tokens=round(tokens),
        grad_norm=norm,
        module_tokens=module_tokens,
        expert_loads=state.expert_loads.of_step(of_experts, module_tokens),
        stop=stops > 0,
    )


def train_on_rank(
    plan: LayoutPlan,
    config: ExperimentConfig,
    emit: Emit,
    should_stop: ShouldStop,
    source: DataSource = default_data,
    evaluations: Evaluations | None = None,
    trace: bool = False,
    peak_flops: float | None = None,
    peers: Peers | None = None,
    code: UserCode = NO_CODE,
) -> list[StepSample]:
    """Train, streaming a sample per iteration, and return the rows of the monitor. Collective.

    Args:
        emit: takes a `StepSample` per iteration on every rank, a `HealthSample` after the first and
            the last, an `EvaluationSample` on rank 0.
        should_stop: called once per iteration; all ranks stop after the same one.
        evaluations: when to test; by default once at the end.
        trace: time every step of the schedule and emit a `TraceSample` per iteration as well.
        peak_flops: FLOP/s of this rank at most, for the utilisation; None if it is not known.
        peers: of this rank in other replicas of the layout; None: the layout has one replica.

    Raises:
        ValueError: the config asks for a validation that the test data does not allow.
        ConfigError: the config asks for TF32, and this rank has no GPU.
    """
    with (
        products_of(config.runtime.precision),
        prepared(plan, config, source, peers, code) as state,
    ):
        tracer = Tracer(emit, align_clocks()) if trace else None
        check_validation(config, state.data, plan.batch.samples_per_microbatch)
        if config.runtime.checkpoint is not None:
            state.saver = saver_of(state, plan)
        state.checks = state.model.check_replicas_rarely()
        monitor = _monitor(state, config, peak_flops)
        kept = KeptBytes(state.model.modules())
        watchers = Watchers(emit, monitor, tracer, CollectiveCount(state.model), kept)
        rows = _train(state, config, watchers, should_stop, evaluations or Evaluations())
        if config.runtime.save_hf is not None:
            save_hf(state.model, config.model, config.runtime.save_hf, peers)
        return rows


def saver_of(state: TrainingState, plan: LayoutPlan) -> Saver:
    """Return what saves a run as `runtime.checkpoint` says, with its directory. Collective."""
    data = data_position(state.config, plan, state.data, dist.get_rank())
    return Saver(state.config, state.model, state.update, data, state.iteration)


def _monitor(
    state: TrainingState, config: ExperimentConfig, peak_flops: float | None
) -> PerformanceMonitor | None:
    if not config.runtime.enable_performance_monitoring:
        return None
    watched = watch(state.model, config, peak_flops)
    state.arrivals = watched.arrivals
    return create_performance_monitor(
        config.model, config.runtime, state.model.module_to_grid_map, watched
    )


def _train(
    state: TrainingState,
    config: ExperimentConfig,
    watchers: Watchers,
    should_stop: ShouldStop,
    evaluations: Evaluations,
) -> list[StepSample]:
    runtime, emit, monitor, model = config.runtime, watchers.emit, watchers.monitor, state.model
    first = iteration = state.iteration
    held: dict[str, dict[str, int]] = {}
    with profiler(runtime, emit) as profile:
        for iteration in range(first, runtime.num_iterations):
            result = _iterate(state, watchers, iteration, should_stop())
            sample = _step_sample(state, monitor, iteration, result)
            sample = with_loads(sample, result.expert_loads)
            sample = replace(sample, further={**sample.further, **result.further_loss})
            if runtime.validation is not None and runtime.validation.due(iteration):
                tested = evaluate(model, state.data, config.data, runtime.validation.samples)
                sample = replace(sample, validation_loss=tested.loss)
            emit(sample)
            if monitor is not None:
                monitor.rows[-1] = sample
            profile.step(iteration)
            if iteration == first:
                held = {} if monitor is None else _held(state, watchers.kept)
                emit(replace(health_sample(model, iteration, watchers.collectives), held=held))
            if result.stop:
                break
            if evaluations.due(iteration, runtime.num_iterations):
                emit_evaluation(
                    model, state.data, config.data, evaluations.samples, iteration, emit
                )
    if state.saver is not None:
        state.saver.save(state.iteration)
        state.saver.finish()
    if iteration > first:
        emit(replace(health_sample(model, iteration, watchers.collectives), held=held))
    emit_evaluation(model, state.data, config.data, evaluations.final_samples, iteration, emit)
    if monitor is None:
        return []
    if runtime.metrics_output_dir is not None:
        monitor.save_metrics(runtime.metrics_output_dir)
    return monitor.rows


def _held(state: TrainingState, kept: KeptBytes) -> dict[str, dict[str, int]]:
    """Return module -> part -> bytes that this rank held in the first iteration."""
    states = bytes_of_states(state.model.modules(), state.update.optimizer)
    return {name: {**parts, ACTIVATIONS: kept.most[name]} for name, parts in states.items()}


def _iterate(state: TrainingState, watchers: Watchers, iteration: int, stop: bool) -> StepResult:
    monitor, tracer = watchers.monitor, watchers.tracer
    if monitor is not None:
        monitor.start_step()
    watching = [watcher.observe for watcher in (monitor, tracer) if watcher is not None]
    with contextlib.ExitStack() as counting:
        counting.enter_context(watchers.collectives.of_iteration())
        if tracer is not None:
            counting.enter_context(listening(tracer.heard))
        if monitor is not None and not watchers.kept.ended:
            counting.enter_context(watchers.kept.watching())
            watching.append(watchers.kept.observe)
        when = f"in iteration {iteration}"
        counting.enter_context(telling_what_is_held(when, lambda: _held(state, watchers.kept)))
        result = exhaust(training_step(state, stop), observed_by(watching))
    if state.saver is not None:  # within the step, whose time has it
        state.saver.after_step(state.iteration)
    result = replace(result, stop=state.update.stops(result.stop))
    if tracer is not None:
        tracer.end_iteration(iteration)
    return result


def _step_sample(
    state: TrainingState, monitor: PerformanceMonitor | None, iteration: int, result: StepResult
) -> StepSample:
    loss, norm = result.loss, result.grad_norm
    if monitor is None:
        rank = dist.get_rank()
        warmup = float(iteration < state.config.runtime.warmup_iterations)
        return StepSample(
            iteration, loss=loss, grad_norm=norm, time=time.time(), rank=rank, warmup=warmup
        )
    samples = state.model.plan.batch.global_batch_size
    return monitor.end_step(
        iteration,
        samples=samples,
        language_tokens=samples * state.config.data.seq_length,
        tokens=result.module_tokens,
        loss=loss,
        grad_norm=norm,
    )
