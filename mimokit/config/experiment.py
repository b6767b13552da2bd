"""Configs that check themselves: of a model, and whole ones of model, data and runtime."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeAlias

from pydantic import PrivateAttr

from mimokit.config.base import PassedChecks, world_check
from mimokit.config.errors import ConfigError, Problem
from mimokit.config.parallelism import ModuleParallelismConfig
from mimokit.config.runtime import (
    SCHEDULE_OF_MODE,
    THREE_PHASE,
    DeploymentMode,
    PipelineSchedule,
)
from mimokit.config.sections import ExperimentSections, ModelSection
from mimokit.config.yaml_file import yaml_text

Sizes: TypeAlias = "Mapping[str, Any] | ModuleParallelismConfig"

UNCHECKED = {
    "data": {"num_workers", "prefetch_factor"},
    "runtime": {
        "metrics_output_dir",
        "tensorboard_dir",
        "loggers",
        "hardware",
        "learning_rate",
        "learning_rate_warmup",
        "learning_rate_decay",
        "weight_decay",
        "adam_epsilon",
        "clip_grad",
        "seed",
        "loss_func",
        "forward_step",
    },
}
"""Fields that no rule reads: a copy that differs in them alone needs no new check."""


class MimoParallelismConfig(ModelSection):
    """The modules of a model, their parallel sizes and their networks."""

    def finalize(self, world_size: int | None = None) -> Self:
        """Compute missing data_parallel sizes and check everything; return the same object.

        Args:
            world_size: ranks of the world, or None for as many as the modules need.

        Raises:
            ConfigError: all problems at once; nothing was changed then.
        """
        from mimokit.config.rules import check_model
        from mimokit.config.world_size import resolve

        check_model(self, world_size)
        self.module_parallelisms = dict(resolve(self, world_size).sizes)
        return self


class ExperimentConfig(ExperimentSections):
    """One experiment. Unpacks as `model, data, runtime = config`."""

    model: MimoParallelismConfig

    _passed: PassedChecks = PrivateAttr(default_factory=PassedChecks)

    def finalize(self, world_size: int | None = None) -> Self:
        """Check everything and work out missing data_parallel sizes; return the same object.

        It reads the schedule, which decides whether a module on shared ranks may have a pipeline.

        Args:
            world_size: ranks of the world, or None for as many as all replicas of the layout need.

        Raises:
            ConfigError: all problems at once; nothing was changed then.
        """
        from mimokit.config.rules import check_experiment
        from mimokit.config.world_size import resolve

        check_experiment(self, world_size)
        world = resolve(self.model, self.ranks_of_replica(world_size))
        self.model.module_parallelisms = dict(world.sizes)
        needed = None if world.world_size is None else world.world_size * self.replicas
        self.mark_passed(world_check(size) for size in (None, world_size, needed))
        return self

    def ranks_of_replica(self, world_size: int | None) -> int | None:
        """Return the ranks of one replica of the layout in a world; None: as many as it needs."""
        return world_size if world_size is None else world_size // self.replicas

    def has_passed(self, check: str) -> bool:
        """Return whether a check was passed and nothing that checks read has changed since."""
        return self._passed.get(check) == self._checked_content()

    def mark_passed(self, checks: Iterable[str]) -> None:
        """Record checks that were passed: copies, and ranks that receive the config, know them."""
        self._passed.update(dict.fromkeys(checks, self._checked_content()))

    def _checked_content(self) -> str:
        return self.model_dump_json(exclude=UNCHECKED)

    def with_layout(self, mode: DeploymentMode, /, **modules: Sizes) -> ExperimentConfig:
        """Return a finalized copy with another layout; networks, data and optimizer stay.

        `config.with_layout("colocated", images={"tensor_parallel": 1})` keeps the ranks of the
        config and gives `images` one replica per rank.

        Args:
            modules: module -> sizes that replace its own; sizes that are left out stay, except
                data_parallel. On shared ranks a data_parallel that is left out becomes what the
                ranks of this config have room for. On separate ranks modules lie one after
                another in the order of the config unless rank_offset is given, and at most one of
                the named modules may leave out data_parallel: it takes the ranks that are left.

        Raises:
            ConfigError: everything that is wrong with the new layout.
        """
        return _with_layout(self, mode, modules)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter((self.model, self.data, self.runtime))

    def to_mapping(self) -> dict[str, Any]:
        """Return plain dicts, as a YAML file holds them; fields that are None are left out."""
        sections = self.model_dump(mode="json", exclude_none=True)
        keys = ("name", "model", "data", "runtime", "prediction", "strategy")
        return {key: sections[key] for key in keys if key in sections}

    def to_yaml(self) -> str:
        """Return a YAML text that loads to an equal config in any folder.

        It inherits from nothing (`extends: null`), even next to a `baseline.yaml`.
        """
        return yaml_text({"extends": None, **self.to_mapping()})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `to_yaml()` to a file and return its path."""
        target = Path(path)
        target.write_text(self.to_yaml(), encoding="utf-8")
        return target


def _with_layout(
    config: ExperimentConfig, mode: DeploymentMode, modules: Mapping[str, Sizes]
) -> ExperimentConfig:
    if mode not in SCHEDULE_OF_MODE:
        right = ", ".join(SCHEDULE_OF_MODE)
        raise _rejected("layout", "deployment_mode", mode, f"choose one of {right}")
    old = config.model.module_parallelisms
    for name in modules:
        if name not in old:
            raise _rejected("layout", name, name, f"the modules are {', '.join(old)}")
    sizes = {name: _merged(old[name], modules.get(name), mode) for name in old}
    world = config.model.needed_world_size
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
