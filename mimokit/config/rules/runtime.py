"""The sections runtime, prediction and strategy agree with themselves, the model and the world."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mimokit.config.errors import ConfigError, Problem, refuse_if_any
from mimokit.config.messages import problem_at
from mimokit.config.parallelism import LARGEST_WORLD
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import a_fix, size_path
from mimokit.config.runtime import (
    BLOCK_SCALED,
    FRAME_PARALLEL,
    MODE_OF_SCHEDULE,
    RUNNABLE_PRECISIONS,
    SCHEDULE_OF_MODE,
    TF32,
    RuntimeConfig,
)
from mimokit.config.strategy import BETWEEN_LAYOUTS, StrategyConfig
from mimokit.units import counted, listed

if TYPE_CHECKING:
    from mimokit.config.experiment import ExperimentConfig


def runtime_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what is wrong about schedule, profiling and validation."""
    runtime = context.runtime
    if runtime is None:
        return
    schedule, mode = runtime.pipeline_schedule, context.model.deployment_mode
    readable = context.is_valid("runtime.pipeline_schedule", "model.deployment_mode")
    if readable and schedule is not None and MODE_OF_SCHEDULE[schedule] != mode:
        right = SCHEDULE_OF_MODE[mode]
        sentence = (
            f"pipeline_schedule is '{schedule}', but model.deployment_mode is "
            f"'{mode}', which goes with '{right}'; change one of the two."
        )
        yield problem_at("runtime.pipeline_schedule", schedule, sentence, right)
    yield from _encoder_microbatches(runtime, context)
    yield from _profiler(runtime, context)
    yield from _profiled_steps(runtime, context)
    yield from _validation(runtime, context)
    yield from _frame_parallel(runtime, context)


def _encoder_microbatches(runtime: RuntimeConfig, context: ValidationContext) -> Iterator[Problem]:
    count, path = runtime.encoder_microbatches, "runtime.encoder_microbatches"
    if count is None or not context.is_valid(path):
        return
    if context.data is not None and context.is_valid("data.num_microbatches"):
        most = context.data.num_microbatches
        if count > most:
            sentence = (
                f"encoder_microbatches is {count}, but a step has {most} micro-batches "
                f"(data.num_microbatches); make it at most {most}."
            )
            yield problem_at(path, count, sentence, most)


def _profiler(runtime: RuntimeConfig, context: ValidationContext) -> Iterator[Problem]:
    fields = ("use_pytorch_profiler", "enable_profiling")
    unused = runtime.use_pytorch_profiler and not runtime.enable_profiling
    if unused and context.is_valid(*(f"runtime.{f}" for f in fields)):
        sentence = (
            "use_pytorch_profiler is true, but enable_profiling is false, so "
            "that no step is profiled; set enable_profiling to true."
        )
        yield problem_at("runtime.enable_profiling", False, sentence, True)


def _profiled_steps(runtime: RuntimeConfig, context: ValidationContext) -> Iterator[Problem]:
    start, end, last = runtime.profile_start_step, runtime.profile_end_step, runtime.num_iterations
    fields = ("profile_start_step", "profile_end_step", "num_iterations")
    if not runtime.enable_profiling or not context.is_valid(*(f"runtime.{f}" for f in fields)):
        return
    if start >= end:
        sentence = (
            f"profile_end_step is {end}, but profiling begins at step {start} "
            f"(profile_start_step); make it greater than {start}."
        )
        yield problem_at("runtime.profile_end_step", end, sentence, start + 1)
    elif end > last:
        sentence = (
            f"Section 'runtime': profile_end_step is {end}, but the run has "
            f"{counted(last, 'iteration')} (num_iterations), whose steps are counted from 0; "
            f"profile steps before {last} alone, or raise num_iterations."
        )
        fix = a_fix("runtime.num_iterations", end)
        yield Problem("runtime", "profile_end_step", end, sentence, fix)


def _validation(runtime: RuntimeConfig, context: ValidationContext) -> Iterator[Problem]:
    validation, last = runtime.validation, runtime.num_iterations
    if validation is None or not context.is_valid("runtime.validation", "runtime.num_iterations"):
        return
    if validation.interval > last:
        sentence = (
            f"validation.interval is {validation.interval}, but the run has "
            f"{counted(last, 'iteration')} (num_iterations), so that none is validated; make it at "
            f"most {last}."
        )
        yield problem_at("runtime.validation.interval", validation.interval, sentence, last)


def _frame_parallel(runtime: RuntimeConfig, context: ValidationContext) -> Iterator[Problem]:
    model = context.model
    readable = context.is_valid("runtime.patch_type", "model.llm_module_name", "model.topology")
    networks = [model.module_architectures.get(name) for name in model.encoder_module_names]
    if FRAME_PARALLEL not in runtime.patch_type or not readable or None in networks:
        return
    valid = context.is_valid("model.module_architectures")
    if valid and all(network.modality != "vision" for network in networks if network):
        sentence = f"patch_type has {FRAME_PARALLEL}, but no module encodes images; leave it out."
        yield problem_at("runtime.patch_type", FRAME_PARALLEL, sentence, [])


def prediction_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield the inputs of modules that are not encoders."""
    prediction = context.prediction
    if prediction is None or not context.graph_is_valid:
        return
    encoders = context.model.encoder_module_names
    for name, seen in (prediction.inputs or {}).items():
        if name not in encoders and context.has_valid_sizes(name):
            sentence = (
                "prediction.inputs has it, but it is not an encoder (those are "
                f"{', '.join(encoders) or 'none'}); remove the entry or add the encoder."
            )
            yield problem_at(f"prediction.inputs.{name}", dict(seen), sentence, None)


def strategy_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield groups larger than the replicas, and replicas that a world has no room for."""
    strategy = context.strategy
    if strategy is None or not context.is_valid("strategy"):
        return
    try:
        strategy.check_nodes(strategy.replicas)
    except ConfigError as error:
        yield from error.problems
    yield from _between_nodes_alone(strategy)
    if strategy.name == "simple_reduce":
        yield from _without_shards(context)
    yield from _world(context, strategy.replicas)


def _between_nodes_alone(strategy: StrategyConfig) -> Iterator[Problem]:
    inner = strategy.inner_optimizer
    for field, value, runs in (
        ("name", strategy.name, strategy.name in BETWEEN_LAYOUTS),
        ("codec", strategy.codec, strategy.codec is None),
        ("inner_optimizer.name", inner and inner.name, inner is None or inner.name != "muon"),
    ):
        if not runs:
            sentence = (
                f"Section 'strategy': strategy.{field} {value} does not run between replicas of a "
                f"layout, only between the nodes of Trainer.fit; {listed(BETWEEN_LAYOUTS)} run "
                "there, without a codec and with any other optimizer."
            )
            yield Problem("strategy", field, value, sentence)


def _without_shards(context: ValidationContext) -> Iterator[Problem]:
    for name, sizes in context.model.module_parallelisms.items():
        for field in ("use_distributed_optimizer", "use_megatron_fsdp"):
            if getattr(sizes, field):
                sentence = (
                    f"{field} is true, and strategy.name is simple_reduce, which averages whole "
                    "gradients; use data_parallel with num_distributed_optimizer_instances instead "
                    "of replicas, or another strategy."
                )
                yield problem_at(size_path(name, field), True, sentence, None)


def _world(context: ValidationContext, replicas: int) -> Iterator[Problem]:
    size = context.world_size
    if replicas > 1 and isinstance(size, int) and size % replicas:
        fitting = [n for n in range(min(replicas, size), 0, -1) if size % n == 0]
        sentence = (
            f"Section 'strategy': strategy.replicas is {replicas}, which does not divide the "
            f"{counted(size, 'rank')} of the world; choose {fitting[0] if fitting else 1}, or "
            "another world."
        )
        yield Problem("strategy", "replicas", replicas, sentence)
        return
    each = context.world.world_size
    if size is None and each is not None and each * replicas > LARGEST_WORLD:
        sentence = (
            f"Section 'strategy': strategy.replicas is {replicas}, but with "
            f"{counted(each, 'rank')} each that is more than the {LARGEST_WORLD} ranks of the "
            "largest world; lower it."
        )
        yield Problem("strategy", "replicas", replicas, sentence)


def check_runnable(config: ExperimentConfig) -> None:
    """Reject what a plan accepts and runs do not have: a precision of other hardware."""
    refuse_if_any(unrunnable(config))


def unrunnable(config: ExperimentConfig) -> tuple[Problem, ...]:
    """Return the problems with which `check_runnable` rejects a config."""
    value = config.runtime.precision
    if value in (None, TF32, *RUNNABLE_PRECISIONS):
        return ()
    blocks = "needs GPUs of compute capability 10.0 or more (Blackwell)"
    why = blocks if value in BLOCK_SCALED else "runs do not know"
    sentence = (
        f"precision is {value}, which {why}; choose {', '.join(RUNNABLE_PRECISIONS)}, or leave it "
        "out to run in fp32."
    )
    return (problem_at("runtime.precision", value, sentence, None),)
