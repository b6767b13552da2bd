"""Each deployment mode has its rules about ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from mimokit.axes import CONFIG_FIELDS, Axis
from mimokit.config.errors import Fix, Problem
from mimokit.config.parallelism import ModuleParallelismConfig
from mimokit.config.rules.context import ValidationContext
from mimokit.config.runtime import THREE_PHASE

_SAME_IN_ALL = (Axis.TENSOR, Axis.CONTEXT, Axis.PIPELINE, Axis.EXPERT)


def mode_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what breaks the rules of the deployment mode."""
    if context.model.llm_module_name not in context.model.module_parallelisms:
        return  # refused by name; who feeds whom is not known
    if not context.is_valid("model.deployment_mode", "model.llm_module_name"):
        return
    left_open = context.world_may_be_open and context.world.world_size is None
    if context.is_valid("model.module_parallelisms") and not left_open:
        yield from context.world.problems
    yield from _expert_problems(context)
    match context.model.deployment_mode:
        case "homogeneous":
            yield from _homogeneous(context)
        case "colocated":
            yield from _colocated(context)
        case "heterogeneous":
            yield from _heterogeneous(context)


def size_path(name: str, field: str) -> str:
    """Return the path of a field of a module's parallel sizes."""
    return f"model.module_parallelisms.{name}.{field}"


def _expert_problems(context: ValidationContext) -> Iterator[Problem]:
    for name, module in context.sizes.items():
        if module.data_parallel is None or not context.has_valid_sizes(name):
            continue
        per_stage = module.total_ranks // module.pipeline_parallel
        if per_stage % module.expert_parallel:
            yield Problem(
                name,
                "expert_parallel",
                module.expert_parallel,
                f"Module '{name}': expert_parallel is {module.expert_parallel}, which does not "
                f"divide the {per_stage} ranks of a pipeline stage (tensor x context x data "
                f"parallel); choose a divisor of {per_stage}.",
            )


def _homogeneous(context: ValidationContext) -> Iterator[Problem]:
    language_name = context.model.llm_module_name
    language = context.sizes[language_name]
    for name in context.model.encoder_module_names:
        module = context.sizes[name]
        axes = list(_SAME_IN_ALL)
        if {name, language_name} <= context.world.given:
            axes.append(Axis.DATA)
        for field in (CONFIG_FIELDS[axis] for axis in axes):
            value, right = getattr(module, field), getattr(language, field)
            paths = (size_path(name, field), size_path(language_name, field))
            if value != right and context.is_valid(*paths):
                yield Problem(
                    name,
                    field,
                    value,
                    f"Module '{name}': {field} is {value}, but homogeneous mode gives all modules "
                    f"the same sizes and '{language_name}' has {right}; set it to {right}, or use "
                    "colocated mode.",
                    {"path": size_path(name, field), "value": right},
                )
    yield from _offset_problems(context, "homogeneous")
    yield from _count_problem(context, language_name)


def _colocated(context: ValidationContext) -> Iterator[Problem]:
    for name, module in context.sizes.items():
        if module.pipeline_parallel != 1 and context.has_valid_sizes(name):
            yield from _colocated_pipeline(context, name, module.pipeline_parallel)
    yield from _offset_problems(context, "colocated")
    for name in context.sizes:
        yield from _count_problem(context, name)
    yield from _replica_problems(context)


def _colocated_pipeline(context: ValidationContext, name: str, stages: int) -> Iterator[Problem]:
    """Yield the pipeline of a module on shared ranks, unless the schedule has a phase for it.

    Three phases have one for the language model's. Without a runtime section nobody has asked for
    them.
    """
    fix: Fix = {"path": size_path(name, "pipeline_parallel"), "value": 1}
    right = "set it to 1, or use heterogeneous mode"
    runtime, path = context.runtime, "runtime.pipeline_schedule"
    if runtime is not None and name == context.model.llm_module_name:
        if runtime.pipeline_schedule == THREE_PHASE or not context.is_valid(path):
            return
        fix = {"path": path, "value": THREE_PHASE}
        right = f"set it to 1, plan it with {path} {THREE_PHASE}, or use heterogeneous mode"
    yield Problem(
        name,
        "pipeline_parallel",
        stages,
        f"Module '{name}': pipeline_parallel is {stages}, but modules that share their ranks in "
        f"colocated mode run without a pipeline; {right}.",
        fix,
    )


def _offset_problems(context: ValidationContext, mode: str) -> Iterator[Problem]:
    for name, module in context.sizes.items():
        if module.rank_offset and context.is_valid(size_path(name, "rank_offset")):
            yield Problem(
                name,
                "rank_offset",
                module.rank_offset,
                f"Module '{name}': rank_offset is {module.rank_offset}, but in {mode} mode all "
                "modules share the ranks from 0 on; set it to 0, or use heterogeneous mode.",
                {"path": size_path(name, "rank_offset"), "value": 0},
            )


def _count_problem(context: ValidationContext, name: str) -> Iterator[Problem]:
    """Yield the problem of a module on shared ranks whose rank count is not the world's."""
    module, world = context.sizes[name], context.world.world_size
    if world is None or module.data_parallel is None or not context.has_valid_sizes(name):
        return
    if context.world_size is None and not context.has_valid_sizes(context.model.llm_module_name):
        return
    if module.total_ranks == world:
        return
    replicas, left = divmod(world, module.ranks_per_replica)
    fits = not left and replicas > 0
    right = (
        f"set data_parallel to {replicas}"
        if fits
        else f"no data_parallel fits, choose sizes whose product divides {world}"
    )
    per_replica = _product_text(module)
    why = (
        f"the world has {world}"
        if context.world_size is not None
        else f"'{context.model.llm_module_name}' takes {world} and all modules share their ranks"
    )
    yield Problem(
        name,
        "data_parallel",
        module.data_parallel,
        f"Module '{name}': data_parallel is {module.data_parallel}, which makes "
        f"{module.total_ranks} ranks ({per_replica} x data {module.data_parallel}), but {why}; "
        f"{right}.",
        {"path": size_path(name, "data_parallel"), "value": replicas} if fits else None,
    )


def _product_text(module: ModuleParallelismConfig) -> str:
    return (
        f"tensor {module.tensor_parallel} x context {module.context_parallel} x pipeline "
        f"{module.pipeline_parallel}"
    )


def _replica_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield the pairs of modules of which neither's replicas can be cut into the other's.

    Shared ranks need it of every pair, since every rank reads its samples once for all modules.
    """
    language = context.model.llm_module_name
    pairs = [
        (target, source) if source == language else (source, target)
        for source, targets in context.model.module_topology.items()
        for target in targets
        if {source, target} <= context.sizes.keys()
    ]
    if context.model.deployment_mode == "colocated":
        encoders = context.model.encoder_module_names
        pairs += [(b, a) for i, a in enumerate(encoders) for b in encoders[i + 1 :]]
    for name, other in pairs:
        mine, theirs = context.sizes[name].data_parallel, context.sizes[other].data_parallel
        if mine is None or theirs is None or not context.has_valid_sizes(name, other):
            continue
        if max(mine, theirs) % min(mine, theirs):
            yield Problem(
                name,
                "data_parallel",
                mine,
                f"Module '{name}': data_parallel is {mine} and that of '{other}' is {theirs}; one "
                "must divide the other, so that samples can be handed over whole.",
            )


def _heterogeneous(context: ValidationContext) -> Iterator[Problem]:
    yield from _replica_problems(context)
    complete = all(module.data_parallel is not None for module in context.sizes.values())
    if not complete or not context.is_valid("model.module_parallelisms"):
        return
    spans = sorted(
        context.sizes.items(), key=lambda item: (item[1].rank_offset, item[1].total_ranks)
    )
    end, before = 0, ""
    for name, module in spans:
        if module.rank_offset < end:
            yield _overlap(name, module, before, end)
        elif module.rank_offset > end:
            yield from _gap(context, name, before, end)
        if module.rank_offset + module.total_ranks > end:
            end, before = module.rank_offset + module.total_ranks, name
    yield from _end(context, before, end)


def _overlap(name: str, module: ModuleParallelismConfig, before: str, end: int) -> Problem:
    last = min(end, module.rank_offset + module.total_ranks) - 1
    return Problem(
        name,
        "rank_offset",
        module.rank_offset,
        f"Module '{name}': rank_offset is {module.rank_offset}, so it overlaps '{before}' on ranks "
        f"{module.rank_offset} to {last}; begin it at rank {end}, or use colocated mode.",
        {"path": size_path(name, "rank_offset"), "value": end},
    )


def _gap(context: ValidationContext, name: str, before: str, end: int) -> Iterator[Problem]:
    start = context.sizes[name].rank_offset
    idle = f"rank {end}" if start == end + 1 else f"ranks {end} to {start - 1}"
    gap = f"so {idle} {'has' if start == end + 1 else 'have'} no module"
    if context.model.allow_rank_gaps:
        warnings.warn(f"Module '{name}': rank_offset is {start}, {gap}.", stacklevel=2)
        return
    fix: Fix = {"path": size_path(name, "rank_offset"), "value": end}
    right = f"begin it at rank {end}"
    if before:
        module = context.sizes[before]
        replicas, left = divmod(start - module.rank_offset, module.ranks_per_replica)
        if not left:
            fix = {"path": size_path(before, "data_parallel"), "value": replicas}
            right += f", give '{before}' data_parallel {replicas}"
    yield Problem(
        name,
        "rank_offset",
        start,
        f"Module '{name}': rank_offset is {start}, but the ranks before it end at {end}, {gap}; "
        f"{right}, or set allow_rank_gaps to true.",
        fix,
    )


def _end(context: ValidationContext, last: str, end: int) -> Iterator[Problem]:
    world = context.world.world_size
    if world is None or end == world:
        return
    module = context.sizes[last]
    idle = f"Module '{last}': data_parallel is {module.data_parallel}, so the modules end at rank "
    if end < world and context.model.allow_rank_gaps:
        warnings.warn(f"{idle}{end} of {world}.", stacklevel=2)
        return
    replicas, left = divmod(world - module.rank_offset, module.ranks_per_replica)
    fits = not left and replicas > 0
    right = f"set data_parallel to {replicas}" if fits else f"use a world of {end} ranks"
    yield Problem(
        last,
        "data_parallel",
        module.data_parallel,
        f"{idle}{end}, but the world has {world}; {right}.",
        {"path": size_path(last, "data_parallel"), "value": replicas} if fits else None,
    )
