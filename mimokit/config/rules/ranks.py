"""The rules of each deployment mode about ranks."""

import warnings
from collections.abc import Iterator

from mimokit.config.errors import Problem
from mimokit.config.messages import NO_FIX, problem_at
from mimokit.config.parallelism import ModuleParallelismConfig
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import PairFacts
from mimokit.config.rules.pair_rules import REPLICAS, broken_pair_rules, shared_ranks_problem
from mimokit.config.rules.rule import ConfigRule, Subject, problems_in
from mimokit.config.rules.writing import SIZES, size_path
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
    yield from problems_in(context, context.sizes, ON_SHARED_RANKS)
    yield from _count_problem(context, context.model.llm_module_name)


def _colocated(context: ValidationContext) -> Iterator[Problem]:
    yield from problems_in(context, [context.model.llm_module_name], OF_PIPELINES_ON_SHARED_RANKS)
    yield from problems_in(context, context.sizes, (*ON_SHARED_RANKS, OF_ADAPTERS_ON_SHARED_RANKS))
    for name in context.sizes:
        yield from _count_problem(context, name)
    yield from _replica_problems(context)


def _staged_feeder(m: Subject) -> object:
    """Return an encoder with several stages that feeds an adapter with one, and its stages."""
    graph, sizes = m.model.module_topology, m.context.sizes
    feeding = [n for n, fed in graph.items() if m.name in fed and n in sizes]
    staged = [n for n in feeding if sizes[n].pipeline_parallel > 1 == m.sizes.pipeline_parallel]
    valid = m.name != m.language and staged and m.context.has_valid_sizes(staged[0])
    return valid and (staged[0], sizes[staged[0]].pipeline_parallel)


_ALONE = "but modules that share their ranks in colocated mode run without a pipeline; set it to 1"
ON_SHARED_RANKS = (
    ConfigRule(
        f"{SIZES}.rank_offset",
        lambda m: m.sizes.rank_offset and (m.model.deployment_mode,),
        ", but in {0} mode all modules share the ranks from 0 on; set it to 0, or use "
        "heterogeneous mode.",
        0,
    ),
)
OF_PIPELINES_ON_SHARED_RANKS = (
    ConfigRule(  # no schedule was chosen
        f"{SIZES}.pipeline_parallel",
        lambda m: m.context.runtime is None and m.sizes.pipeline_parallel > 1,
        f", {_ALONE}, or use heterogeneous mode.",
        1,
        reads=(SIZES,),
    ),
    ConfigRule(
        f"{SIZES}.pipeline_parallel",
        lambda m: m.runtime.pipeline_schedule != THREE_PHASE and m.sizes.pipeline_parallel > 1,
        f", {_ALONE}, run it with runtime.pipeline_schedule {THREE_PHASE}, or use heterogeneous "
        "mode.",
        THREE_PHASE,
        mends="runtime.pipeline_schedule",
        reads=(SIZES, "runtime.pipeline_schedule"),
    ),
)
# Each set of ranks would compute such an adapter, but the last one alone has the encoder's rows.
OF_ADAPTERS_ON_SHARED_RANKS = ConfigRule(
    f"{SIZES}.pipeline_parallel",
    _staged_feeder,
    ", but '{0}', which feeds it, has {1} stages on the same ranks; set it to {1}, or that of "
    "'{0}' to 1.",
    lambda _, stages: stages,
    reads=(SIZES,),
)


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
        f", so it overlaps '{before}' on ranks {module.rank_offset} to {last}; begin it at rank "
        f"{end}, or use colocated mode."
    )
    return problem_at(size_path(name, "rank_offset"), module.rank_offset, what, end)


def _gap(context: ValidationContext, name: str, before: str, end: int) -> Iterator[Problem]:
    start = context.sizes[name].rank_offset
    idle = f"rank {end}" if start == end + 1 else f"ranks {end} to {start - 1}"
    gap = f"so {idle} {'has' if start == end + 1 else 'have'} no module"
    if context.model.allow_rank_gaps:
        warnings.warn(f"Module '{name}': rank_offset is {start}, {gap}.", stacklevel=2)
        return
    fix = name, "rank_offset", end
    right = f"begin it at rank {end}"
    if before:
        module = context.sizes[before]
        replicas, left = divmod(start - module.rank_offset, module.ranks_per_replica)
        if not left:
            fix = before, "data_parallel", replicas
            right += f", give '{before}' data_parallel {replicas}"
    what = (
        f", but the ranks before it end at {end}, {gap}; {right}, or set allow_rank_gaps to true."
    )
    path = size_path(name, "rank_offset")
    yield problem_at(path, start, what, fix[-1], size_path(*fix[:2]))


def _end(context: ValidationContext, last: str, end: int) -> Iterator[Problem]:
    world = context.world.world_size
    if world is None or end == world:
        return
    module = context.sizes[last]
    ends = f", so the modules end at rank {end}"
    if end < world and context.model.allow_rank_gaps:
        idle = f"Module '{last}': data_parallel is {module.data_parallel}{ends} of {world}."
        warnings.warn(idle, stacklevel=2)
        return
    replicas, left = divmod(world - module.rank_offset, module.ranks_per_replica)
    fits = not left and replicas > 0
    right = (
        f"set data_parallel to {replicas}"
        if fits
        else f"use a world of {counted(end * context.replicas, 'rank')}"
    )
    what = f"{ends}, but {_room_text(context, world)}; {right}."
    path = size_path(last, "data_parallel")
    yield problem_at(path, module.data_parallel, what, replicas if fits else NO_FIX)
