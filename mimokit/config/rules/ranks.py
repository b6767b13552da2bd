"""The rules of each deployment mode about ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from mimokit.config.errors import Problem
from mimokit.config.parallelism import ModuleParallelismConfig
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import (
    PairFacts,
    a_fix,
    module_problem,
    size_path,
    size_problem,
)
from mimokit.config.rules.pair_rules import (
    REPLICAS,
    broken_pair_rules,
    pipeline_problem,
    shared_ranks_problem,
)
from mimokit.config.runtime import THREE_PHASE
from mimokit.units import counted


def mode_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what breaks the rules of the deployment mode."""
    if context.model.llm_module_name not in context.model.module_parallelisms:
        return  # rejected by name; the topology is not known
    if not context.is_valid("model.deployment_mode", "model.llm_module_name"):
        return
    left_open = context.world_may_be_open and context.world.world_size is None
    if context.is_valid("model.module_parallelisms") and not left_open:
        yield from context.world.problems
    match context.model.deployment_mode:
        case "homogeneous":
            yield from _homogeneous(context)
        case "colocated":
            yield from _colocated(context)
        case "heterogeneous":
            yield from _heterogeneous(context)


def _homogeneous(context: ValidationContext) -> Iterator[Problem]:
    yield from _offset_problems(context, "homogeneous")
    yield from _count_problem(context, context.model.llm_module_name)


def _colocated(context: ValidationContext) -> Iterator[Problem]:
    yield from _language_pipeline(context)
    yield from _offset_problems(context, "colocated")
    for name in context.sizes:
        yield from _count_problem(context, name)
    yield from _replica_problems(context)
    yield from _adapter_problems(context)


def _adapter_problems(context: ValidationContext) -> Iterator[Problem]:
    # Each set of ranks would compute such an adapter, but the last one alone has the encoder's
    # rows.
    model, sizes = context.model, context.sizes
    for source, targets in model.module_topology.items():
        for name in (name for name in targets if name != model.llm_module_name):
            if not {source, name} <= sizes.keys() or not context.has_valid_sizes(source, name):
                continue
            stages = sizes[source].pipeline_parallel
            if sizes[name].pipeline_parallel == 1 < stages:
                what = (
                    f"but '{source}', which feeds it, has {stages} stages on the same ranks; set "
                    f"it to {stages}, or that of '{source}' to 1."
                )
                yield size_problem(name, "pipeline_parallel", 1, what, stages)


def _language_pipeline(context: ValidationContext) -> Iterator[Problem]:
    # Without a runtime section no schedule was chosen.
    name = context.model.llm_module_name
    stages = context.sizes[name].pipeline_parallel
    if stages == 1 or not context.has_valid_sizes(name):
        return
    runtime, path = context.runtime, "runtime.pipeline_schedule"
    if runtime is None:
        fix = a_fix(size_path(name, "pipeline_parallel"), 1)
        yield pipeline_problem(name, stages, "set it to 1, or use heterogeneous mode", fix)
    elif runtime.pipeline_schedule != THREE_PHASE and context.is_valid(path):
        right = f"set it to 1, run it with {path} {THREE_PHASE}, or use heterogeneous mode"
        yield pipeline_problem(name, stages, right, a_fix(path, THREE_PHASE))


def _offset_problems(context: ValidationContext, mode: str) -> Iterator[Problem]:
    for name, module in context.sizes.items():
        if module.rank_offset and context.is_valid(size_path(name, "rank_offset")):
            what = (
                f"but in {mode} mode all modules share the ranks from 0 on; set it to 0, or use "
                "heterogeneous mode."
            )
            yield size_problem(name, "rank_offset", module.rank_offset, what, 0)


def _count_problem(context: ValidationContext, name: str) -> Iterator[Problem]:
    module, world = context.sizes[name], context.world.world_size
    if world is None or module.data_parallel is None or not context.has_valid_sizes(name):
        return
    if context.world_size is None and not context.has_valid_sizes(context.model.llm_module_name):
        return
    if module.total_ranks == world:
        return
    why = (
        _room_text(context, world)
        if context.world_size is not None
        else f"'{context.model.llm_module_name}' takes {world} and all modules share their ranks"
    )
    yield shared_ranks_problem(name, context.cuts[name], world, why)


def _room_text(context: ValidationContext, ranks: int) -> str:
    if context.replicas == 1:
        return f"the world has {ranks}"
    return f"each of the {counted(context.replicas, 'replica')} of strategy.replicas has {ranks}"


def _replica_problems(context: ValidationContext) -> Iterator[Problem]:
    # Shared ranks need it of every pair, since every rank reads its samples once for all modules.
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
        if context.has_valid_sizes(name, other):
            facts = PairFacts(context.model.deployment_mode, name, other)
            yield from broken_pair_rules(
                context.cuts[name], context.cuts[other], facts, (REPLICAS,)
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
    what = (
        f"so it overlaps '{before}' on ranks {module.rank_offset} to {last}; begin it at rank "
        f"{end}, or use colocated mode."
    )
    return size_problem(name, "rank_offset", module.rank_offset, what, end)


def _gap(context: ValidationContext, name: str, before: str, end: int) -> Iterator[Problem]:
    start = context.sizes[name].rank_offset
    idle = f"rank {end}" if start == end + 1 else f"ranks {end} to {start - 1}"
    gap = f"so {idle} {'has' if start == end + 1 else 'have'} no module"
    if context.model.allow_rank_gaps:
        warnings.warn(f"Module '{name}': rank_offset is {start}, {gap}.", stacklevel=2)
        return
    fix = a_fix(size_path(name, "rank_offset"), end)
    right = f"begin it at rank {end}"
    if before:
        module = context.sizes[before]
        replicas, left = divmod(start - module.rank_offset, module.ranks_per_replica)
        if not left:
            fix = a_fix(size_path(before, "data_parallel"), replicas)
            right += f", give '{before}' data_parallel {replicas}"
    sentence = (
        f"rank_offset is {start}, but the ranks before it end at {end}, {gap}; "
        f"{right}, or set allow_rank_gaps to true."
    )
    yield module_problem(name, "rank_offset", start, sentence, fix)


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
    right = (
        f"set data_parallel to {replicas}"
        if fits
        else f"use a world of {counted(end * context.replicas, 'rank')}"
    )
    sentence = f"{idle}{end}, but {_room_text(context, world)}; {right}."
    fix = a_fix(size_path(last, "data_parallel"), replicas) if fits else None
    yield Problem(last, "data_parallel", module.data_parallel, sentence, fix)
