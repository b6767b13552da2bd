"""The sections runtime, prediction and strategy agree with themselves, the model and the world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mimokit.config.errors import ConfigError, Problem, refuse_if_any
from mimokit.config.parallelism import LARGEST_WORLD
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.rule import ConfigRule, Subject, problems_in
from mimokit.config.rules.writing import SIZES
from mimokit.config.runtime import (
    BLOCK_SCALED,
    FRAME_PARALLEL,
    MODE_OF_SCHEDULE,
    RUNNABLE_PRECISIONS,
    SCHEDULE_OF_MODE,
    TF32,
)
from mimokit.config.strategy import BETWEEN_LAYOUTS
from mimokit.units import listed

if TYPE_CHECKING:
    from mimokit.config.experiment import ExperimentConfig


def runtime_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what is wrong about schedule, profiling, validation, predictions and the strategy."""
    model, prediction, strategy = context.model, context.prediction, context.strategy
    yield from problems_in(context, [model.llm_module_name], OF_RUNS)
    if prediction is not None and context.graph_is_valid:
        yield from problems_in(context, prediction.inputs or (), OF_INPUTS)
    if strategy is not None and context.is_valid("strategy"):
        try:
            strategy.check_nodes(strategy.replicas)
        except ConfigError as error:
            yield from error.problems
        yield from problems_in(context, [model.llm_module_name], OF_STRATEGIES)
        yield from problems_in(context, model.module_parallelisms, OF_WHOLE_GRADIENTS)


def check_runnable(config: ExperimentConfig) -> None:
    """Reject what a plan accepts and runs do not have: a precision of other hardware."""
    refuse_if_any(unrunnable(config))


def unrunnable(config: ExperimentConfig) -> tuple[Problem, ...]:
    """Return the problems with which `check_runnable` rejects a config."""
    context = ValidationContext.of(config, None)
    return tuple(problems_in(context, [config.model.llm_module_name], (RUNNABLE,)))


RUNNABLE = ConfigRule(
    "runtime.precision",
    lambda m: (
        m.runtime.precision not in (None, TF32, *RUNNABLE_PRECISIONS)
        and (
            "needs GPUs of compute capability 10.0 or more (Blackwell)"
            if m.runtime.precision in BLOCK_SCALED
            else "runs do not know",
            ", ".join(RUNNABLE_PRECISIONS),
        )
    ),
    ", which {0}; choose {1}, or leave it out to run in fp32.",
    None,
)


def _profile_ends_late(m: Subject) -> bool:
    return m.runtime.profile_end_step > m.runtime.profile_start_step


OF_RUNS = (
    ConfigRule(
        "runtime.pipeline_schedule",
        lambda m: m.runtime.pipeline_schedule is not None
        and MODE_OF_SCHEDULE[m.runtime.pipeline_schedule] != m.model.deployment_mode
        and (m.model.deployment_mode, SCHEDULE_OF_MODE[m.model.deployment_mode]),
        ", but model.deployment_mode is {0}, which goes with {1}; change one of the two.",
        lambda _, schedule: schedule,
        reads=("model.deployment_mode",),
    ),
    ConfigRule(
        "runtime.encoder_microbatches",
        lambda m: (m.runtime.encoder_microbatches or 0) > m.data.num_microbatches
        and m.data.num_microbatches,
        ", but a step has {0} micro-batches (data.num_microbatches); make it at most {0}.",
        lambda most: most,
        reads=("data.num_microbatches",),
    ),
    ConfigRule(
        "runtime.enable_profiling",
        lambda m: m.runtime.use_pytorch_profiler and not m.runtime.enable_profiling,
        "use_pytorch_profiler is true, but enable_profiling is false, so that no step is profiled; "
        "set enable_profiling to true.",
        True,
        reads=("runtime.use_pytorch_profiler",),
    ),
    ConfigRule(
        "runtime.profile_end_step",
        lambda m: m.runtime.enable_profiling and not _profile_ends_late(m)
        and (m.runtime.profile_start_step,),
        ", but profiling begins at step {0} (profile_start_step); make it greater than {0}.",
        lambda start: start + 1,
        reads=("runtime.profile_start_step", "runtime.num_iterations"),
    ),
    ConfigRule(
        "runtime.profile_end_step",
        lambda m: m.runtime.enable_profiling and _profile_ends_late(m)
        and m.runtime.profile_end_step > m.runtime.num_iterations
        and (m.runtime.num_iterations, m.runtime.profile_end_step),
        ", but the run has {0:iteration} (num_iterations), whose steps are counted from 0; profile "
        "steps before {0} alone, or raise num_iterations.",
        lambda _, end: end,
        mends="runtime.num_iterations",
        reads=("runtime.profile_start_step", "runtime.num_iterations"),
    ),
    ConfigRule(
        "runtime.validation.interval",
        lambda m: m.runtime.validation is not None
        and m.runtime.validation.interval > m.runtime.num_iterations and m.runtime.num_iterations,
        ", but the run has {0:iteration} (num_iterations), so that none is validated; make it at "
        "most {0}.",
        lambda last: last,
        reads=("runtime.num_iterations",),
    ),
    ConfigRule(
        "runtime.patch_type",
        lambda m: FRAME_PARALLEL in m.runtime.patch_type and m.context.graph_is_valid and all(
            name in m.model.module_architectures
            and m.model.module_architectures[name].modality != "vision"
            for name in m.model.encoder_module_names
        ),
        f"patch_type has {FRAME_PARALLEL}, but no module encodes images; leave it out.",
        [],
        reads=("model.module_architectures",),
    ),
)  # fmt: skip
OF_INPUTS = (
    ConfigRule(
        "prediction.inputs.{name}",
        lambda m: not m.encodes and (", ".join(m.model.encoder_module_names) or "none",),
        "prediction.inputs has it, but it is not an encoder (those are {0}); remove the entry or "
        "add the encoder.",
        None,
        reads=(SIZES,),
    ),
)


def _between_nodes(field: str, unfit: Callable[[Subject], object]) -> ConfigRule:
    return ConfigRule(
        f"strategy.{field}",
        unfit,
        f"strategy.{field} {{0}} does not run between replicas of a layout, only between the nodes "
        f"of Trainer.fit; {listed(BETWEEN_LAYOUTS)} run there, without a codec and with any other "
        "optimizer.",
    )


def _no_divisor(m: Subject) -> object:
    """Return the ranks of a world that replicas cannot share, and how many replicas could."""
    ranks, replicas = m.context.world_size, m.strategy.replicas
    if not isinstance(ranks, int) or ranks % replicas == 0:
        return False
    return ranks, next((n for n in range(min(replicas, ranks), 0, -1) if ranks % n == 0), 1)


OF_STRATEGIES = (
    _between_nodes("name", lambda m: m.strategy.name not in BETWEEN_LAYOUTS and m.strategy.name),
    _between_nodes("codec", lambda m: m.strategy.codec),
    _between_nodes(
        "inner_optimizer.name",
        lambda m: getattr(m.strategy.inner_optimizer, "name", None) == "muon" and "muon",
    ),
    ConfigRule(
        "strategy.replicas",
        _no_divisor,
        ", which does not divide the {0:rank} of the world; choose {1}, or another world.",
    ),
    ConfigRule(
        "strategy.replicas",
        lambda m: m.context.world_size is None and (ranks := m.context.world.world_size)
        and ranks * m.strategy.replicas > LARGEST_WORLD and (ranks, LARGEST_WORLD),
        ", but with {0:rank} each that is more than the {1} ranks of the largest world; lower it.",
    ),
)  # fmt: skip


def _whole_gradients(field: str) -> ConfigRule:
    return ConfigRule(
        f"{SIZES}.{field}",
        lambda m: (
            m.strategy.name == "simple_reduce"
            and getattr(m.model.module_parallelisms[m.name], field)
        ),
        ", and strategy.name is simple_reduce, which averages whole gradients; use data_parallel "
        "with num_distributed_optimizer_instances instead of replicas, or another strategy.",
        None,
    )


OF_WHOLE_GRADIENTS = tuple(
    map(_whole_gradients, ("use_distributed_optimizer", "use_megatron_fsdp"))
)
