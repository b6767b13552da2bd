"""The training loop of a rank."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch.distributed as dist

from mimokit.config import ExperimentSections
from mimokit.config.runtime import Evaluations
from mimokit.engine.checkpoints.data import data_position
from mimokit.engine.checkpoints.saver import Saver
from mimokit.engine.device import products_of
from mimokit.engine.inside_steps import listening
from mimokit.engine.run_of_rank import RunOfRank
from mimokit.engine.steps import exhaust, observed_by
from mimokit.engine.training.evaluation import check_validation, emit_evaluation, evaluate
from mimokit.engine.training.expert_loads import with_loads
from mimokit.engine.training.health import CollectiveCount, health_sample
from mimokit.engine.training.loop_monitor import create_performance_monitor
from mimokit.engine.training.memory import telling_what_is_held
from mimokit.engine.training.module_bytes import ACTIVATIONS, KeptBytes, bytes_of_states
from mimokit.engine.training.monitor import PerformanceMonitor, watch_ranks
from mimokit.engine.training.optimizer_step import (
    StepResult,
    TrainingState,
    prepared,
    training_step,
)
from mimokit.engine.training.profiling import profiler
from mimokit.engine.training.resuming import go_on
from mimokit.engine.training.saving import save_hf
from mimokit.engine.training.tracer import Tracer, align_clocks
from mimokit.samples import Emit, StepSample

ShouldStop = Callable[[], bool]


@dataclass(frozen=True)
class Watchers:
    """Who watches a run; None for what the config or the caller left out."""

    emit: Emit
    monitor: PerformanceMonitor | None
    tracer: Tracer | None
    collectives: CollectiveCount
    kept: KeptBytes


def train_on_rank(
    run: RunOfRank,
    emit: Emit,
    should_stop: ShouldStop,
    evaluations: Evaluations | None = None,
    trace: bool = False,
    peak_flops: float | None = None,
) -> list[StepSample]:
    """Train, streaming a sample per iteration, and return the rows of the monitor. Collective.

    Args:
        emit: takes a `StepSample` per iteration on every rank, a `HealthSample` after the first and
            the last, an `EvaluationSample` on rank 0.
        should_stop: called once per iteration; all ranks stop after the same one.
        evaluations: when to test; by default once at the end.
        trace: time every step of the schedule and emit a `TraceSample` per iteration as well.
        peak_flops: FLOP/s of this rank at most, for the utilisation; None if it is not known.

    Raises:
        ValueError: the config asks for a validation that the test data does not allow.
        ConfigError: the config asks for TF32, and this rank has no GPU.
    """
    config = run.config
    with products_of(config.runtime.precision), prepared(run, go_on) as state:
        tracer = Tracer(emit, align_clocks()) if trace else None
        check_validation(config, state.data, run.plan.batch.samples_per_microbatch)
        if config.runtime.checkpoint is not None:
            state.saver = saver_of(state)
        state.checks = state.model.check_replicas_rarely()
        monitor = _monitor(state, config, peak_flops)
        kept = KeptBytes(state.model.modules())
        watchers = Watchers(emit, monitor, tracer, CollectiveCount(state.model), kept)
        rows = _train(state, config, watchers, should_stop, evaluations or Evaluations())
        if config.runtime.save_hf is not None:
            save_hf(state.model, config.model, config.runtime.save_hf, run.peers)
        return rows


def saver_of(state: TrainingState) -> Saver:
    """Return what saves a run as `runtime.checkpoint` says, with its directory. Collective."""
    data = data_position(state.config, state.model.plan, state.data, dist.get_rank())
    return Saver(state.config, state.model, state.update, data, state.iteration)


def _monitor(
    state: TrainingState, config: ExperimentSections, peak_flops: float | None
) -> PerformanceMonitor | None:
    if not config.runtime.enable_performance_monitoring:
        return None
    watched = watch_ranks(state.model, config, peak_flops)
    state.arrivals = watched.arrivals
    return create_performance_monitor(
        config.model, config.runtime, state.model.module_to_grid_map, watched
    )


def _train(
    state: TrainingState,
    config: ExperimentSections,
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
