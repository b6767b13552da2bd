"""Deals the samples of a micro-batch to the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mimokit.config import (
    ConfigError,
    DataConfig,
    DeploymentMode,
    MimoParallelismConfig,
)
from mimokit.config.graph import Topology
from mimokit.config.rules import ValidationContext
from mimokit.config.rules.pair_rules import SAMPLES
from mimokit.config.rules.sharding import pair_problems
from mimokit.config.world_size import resolve
from mimokit.planning.ranks import ModuleRanks, RankRanges
from mimokit.planning.types import BatchPlan, ModuleBatch


def validate_heterogeneous_batch_config(
    model_config: MimoParallelismConfig, data_config: DataConfig
) -> int:
    """Return the samples of one micro-batch, which every module's replicas must divide.

    Over all replicas it is `base_batch_size * data_parallel of the language module`.

    Raises:
        ConfigError: a module whose data_parallel is missing or does not divide it.
    """
    world = resolve(model_config, None)
    language = model_config.llm_module_name
    context = ValidationContext(model_config, data_config)
    problems = (*world.problems, *pair_problems(context, (SAMPLES,)))
    if problems:
        raise ConfigError(problems)
    replicas = model_config.get_parallelism(language).data_parallel
    return data_config.base_batch_size * (replicas or world.sizes[language].data_parallel or 1)


def plan_batch(
    mode: DeploymentMode,
    llm_module_name: str,
    modules: Mapping[str, ModuleRanks],
    base_batch_size: int,
    num_microbatches: int,
    topology: Topology,
) -> BatchPlan:
    """Return the samples that each rank computes and reads, contiguous along data parallelism.

    Replica r of a module computes samples [r * B / dp, (r + 1) * B / dp) of a micro-batch of B.
    On colocated ranks a rank reads once for all its modules: the range of the module with the
    fewest replicas, which contains those of all others. If the language model has a pipeline, the
    ranks of its later stages compute other samples than their encoders: each module reads
    separately.
    """
    samples_per_microbatch = base_batch_size * modules[llm_module_name].data_parallel
    fewest = min(ranks.data_parallel for ranks in modules.values())
    once = mode == "colocated" and modules[llm_module_name].pipeline_parallel == 1
    batches = {}
    for name, ranks in modules.items():
        replicas_read = fewest if once else ranks.data_parallel
        spans = _loading_spans(ranks, llm_module_name, topology)
        batches[name] = ModuleBatch(
            micro_batch_size=samples_per_microbatch // ranks.data_parallel,
            samples=_pieces(ranks, (ranks.ranks,), ranks.data_parallel, samples_per_microbatch),
            loads=tuple(rank for span in spans for rank in span),
            loaded=_pieces(ranks, spans, replicas_read, samples_per_microbatch),
        )
    return BatchPlan(samples_per_microbatch, num_microbatches, batches)


def _loading_spans(
    ranks: ModuleRanks, llm_module_name: str, topology: Topology
) -> tuple[range, ...]:
    """Return the ranks that read inputs, at the first stage, or labels, at the last.

    Modules that no module feeds read inputs, modules that feed none read labels, and the language
    module reads both.
    """
    is_language = ranks.module == llm_module_name
    fed = any(ranks.module in targets for targets in topology.values())
    stages = []
    if is_language or not fed:
        stages.append(ranks.stage(0))
    if is_language or not topology[ranks.module]:
        stages.append(ranks.stage(-1))
    return tuple(dict.fromkeys(stages))


def _pieces(
    ranks: ModuleRanks, spans: Iterable[range], replicas: int, samples_per_microbatch: int
) -> RankRanges:
    return RankRanges(
        spans=tuple(spans),
        rank_offset=ranks.rank_offset,
        ranks_per_piece=ranks.ranks_per_stage // replicas,
        pieces=replicas,
        size=samples_per_microbatch // replicas,
    )
