"""The same experiment in another layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.parallelism import ModuleParallelismConfig
from mimokit.config.runtime import SCHEDULE_OF_MODE, THREE_PHASE, DeploymentMode, PipelineSchedule

if TYPE_CHECKING:
    from mimokit.config.experiment import ExperimentConfig

Sizes: TypeAlias = "Mapping[str, Any] | ModuleParallelismConfig"


def with_layout(
    config: ExperimentConfig, mode: DeploymentMode, modules: Mapping[str, Sizes]
) -> ExperimentConfig:
    """Return a copy in another mode and with other sizes; see `ExperimentConfig.with_layout`."""
    if mode not in SCHEDULE_OF_MODE:
        right = ", ".join(SCHEDULE_OF_MODE)
        raise _rejected("layout", "deployment_mode", mode, f"choose one of {right}")
    old = config.model.module_parallelisms
    for name in modules:
        if name not in old:
            raise _rejected("layout", name, name, f"the modules are {', '.join(old)}")
    sizes = {name: _merged(old[name], modules.get(name), mode) for name in old}
    world = _world_size(config)
    if mode == "heterogeneous":
        sizes = _side_by_side(sizes, modules, world)
    elif world is not None:
        sizes = {name: _over(module, world) for name, module in sizes.items()}
    stages = sizes[config.model.llm_module_name].pipeline_parallel
    three_phase = mode == "colocated" and stages > 1
    schedule: PipelineSchedule = THREE_PHASE if three_phase else SCHEDULE_OF_MODE[mode]
    changed = config.model_copy(deep=True)
    changed.model.deployment_mode = mode
    changed.model.module_parallelisms = sizes
    changed.runtime.pipeline_schedule = schedule
    return changed.finalize()


def _merged(
    old: ModuleParallelismConfig, new: Sizes | None, mode: DeploymentMode
) -> ModuleParallelismConfig:
    """Return the new sizes on top of the old; a data_parallel to be worked out is None."""
    if isinstance(new, ModuleParallelismConfig):
        return new.model_copy()
    values = {**old.model_dump(), "rank_offset": 0, **(new or {})}
    worked_out = new is not None or mode != "heterogeneous"
    if worked_out and "data_parallel" not in (new or {}):
        values["data_parallel"] = None
    return ModuleParallelismConfig(**values)


def _world_size(config: ExperimentConfig) -> int | None:
    from mimokit.config.world_size import needed_world_size

    return needed_world_size(config.model)


def _over(sizes: ModuleParallelismConfig, ranks: int) -> ModuleParallelismConfig:
    """Fill in the replicas that a number of ranks has room for; `finalize` rejects what is left."""
    if sizes.data_parallel is not None or ranks % sizes.ranks_per_replica:
        return sizes
    return sizes.model_copy(update={"data_parallel": ranks // sizes.ranks_per_replica})


def _side_by_side(
    sizes: Mapping[str, ModuleParallelismConfig], named: Mapping[str, Sizes], world: int | None
) -> dict[str, ModuleParallelismConfig]:
    open_modules = [name for name, module in sizes.items() if module.data_parallel is None]
    if len(open_modules) > 1 or (open_modules and world is None):
        names = " and ".join(f"'{name}'" for name in open_modules)
        right = "give it for all of them but one" if world else "give it"
        raise _rejected("layout", "data_parallel", None, f"it is missing for {names}; {right}")
    fixed = sum(module.total_ranks for module in sizes.values() if module.data_parallel is not None)
    placed, first = {}, 0
    for name, module in sizes.items():
        complete = module if world is None else _over(module, world - fixed)
        stated = named.get(name)
        explicit = isinstance(stated, ModuleParallelismConfig) or "rank_offset" in (stated or {})
        placed[name] = complete if explicit else complete.model_copy(update={"rank_offset": first})
        if placed[name].data_parallel is not None:
            first = placed[name].rank_offset + placed[name].total_ranks
    return placed


def _rejected(module: str, field: str, value: object, right: str) -> ConfigError:
    sentence = f"Layout: {field} is {value!r}; {right}."
    return ConfigError([Problem(module, field, value, sentence)])
