"""How many replicas of a module a world has room for."""

from collections.abc import Mapping
from dataclasses import dataclass

from mimokit.config.errors import Problem
from mimokit.config.parallelism import LARGEST_WORLD, ModuleParallelismConfig
from mimokit.config.sections import ModelSection
from mimokit.units import counted


@dataclass(frozen=True)
class ResolvedWorld:
    """A model with its replicas counted.

    Attributes:
        world_size: ranks of the world, or None where nothing says it.
        sizes: module -> its sizes; data_parallel is None where it could not be worked out.
        given: the modules whose data_parallel the user wrote.
    """

    world_size: int | None
    sizes: Mapping[str, ModuleParallelismConfig]
    problems: tuple[Problem, ...]
    given: frozenset[str]


def resolve(model: ModelSection, world_size: int | None) -> ResolvedWorld:
    """Fill in every missing data_parallel; the model itself is left as it is."""
    stated = frozenset(
        name for name, module in model.module_parallelisms.items() if module.data_parallel
    )
    rejected = _world_problems(world_size)
    world = model.needed_world_size if world_size is None or rejected else world_size
    if world is None:
        problems = rejected or model.unknown_world_size
        return ResolvedWorld(None, dict(model.module_parallelisms), problems, stated)
    sizes: dict[str, ModuleParallelismConfig] = {}
    problems = rejected
    for name, module in model.module_parallelisms.items():
        if module.data_parallel is not None:
            sizes[name] = module
            continue
        room = _room(model, module, world)
        replicas, left = divmod(room, module.ranks_per_replica)
        if left or replicas < 1:
            problems += (_no_replicas(name, module, room),)
            sizes[name] = module
        else:
            sizes[name] = module.model_copy(update={"data_parallel": replicas})
    return ResolvedWorld(world, sizes, problems, stated)


def _room(model: ModelSection, module: ModuleParallelismConfig, world: int) -> int:
    if model.deployment_mode != "heterogeneous":
        return world
    later = [
        other.rank_offset
        for other in model.module_parallelisms.values()
        if other.rank_offset > module.rank_offset
    ]
    return min([*later, world]) - module.rank_offset


def _no_replicas(name: str, module: ModuleParallelismConfig, room: int) -> Problem:
    sizes = (
        f"tensor_parallel {module.tensor_parallel} x context_parallel {module.context_parallel} "
        f"x pipeline_parallel {module.pipeline_parallel}"
    )
    sentence = (
        f"Module '{name}': data_parallel is missing and cannot be worked out, as a replica takes "
        f"{counted(module.ranks_per_replica, 'rank')} ({sizes}) and {max(room, 0)} ranks are no "
        f"multiple of it; choose sizes whose product divides {max(room, 0)}."
        if room > 0
        else f"Module '{name}': rank_offset is {module.rank_offset}, beyond the last rank of the "
        "world; begin it inside the world."
    )
    field = "data_parallel" if room > 0 else "rank_offset"
    return Problem(name, field, None if room > 0 else module.rank_offset, sentence)


def _world_problems(world_size: object) -> tuple[Problem, ...]:
    if world_size is None:
        return ()
    whole = isinstance(world_size, int) and not isinstance(world_size, bool)
    if whole and 1 <= int(str(world_size)) <= LARGEST_WORLD:
        return ()
    sentence = (
        f"World: world_size is {world_size!r}; it must be a whole number from 1 to {LARGEST_WORLD}."
    )
    return (Problem("world", "world_size", world_size, sentence),)
