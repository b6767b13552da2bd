"""The config that is validated, and what is known about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from mimokit.config.graph import find_cycle, names_of
from mimokit.config.parallelism import ModuleParallelismConfig
from mimokit.config.sizes import ParallelSizes, sizes_of
from mimokit.config.world_size import ResolvedWorld, resolve

if TYPE_CHECKING:
    from mimokit.config.architecture import ModuleArchitecture
    from mimokit.config.data import DataConfig
    from mimokit.config.experiment import ExperimentConfig, MimoParallelismConfig
    from mimokit.config.prediction import PredictionConfig
    from mimokit.config.rules.rule import Subject
    from mimokit.config.runtime import RuntimeConfig
    from mimokit.config.strategy import StrategyConfig


@dataclass(frozen=True)
class ValidationContext:
    """A config to validate, or the part of it that could be read.

    Attributes:
        data: the data section, or None for a check of the model alone.
        world_size: ranks of the world, or None for as many as all replicas of the layout need.
        invalid_paths: paths of values that were rejected before. A default stands in their place,
            so a check that depends on one of them must be silent.
        world_may_be_open: a data_parallel that follows from the world size may be missing.
    """

    model: MimoParallelismConfig
    data: DataConfig | None = None
    runtime: RuntimeConfig | None = None
    prediction: PredictionConfig | None = None
    strategy: StrategyConfig | None = None
    world_size: int | None = None
    invalid_paths: frozenset[str] = field(default_factory=frozenset)
    world_may_be_open: bool = False

    @classmethod
    def of(cls, config: ExperimentConfig, world_size: int | None, **known: Any) -> Self:
        """Return the context of a whole config."""
        sections = (config.model, config.data, config.runtime, config.prediction, config.strategy)
        return cls(*sections, world_size=world_size, **known)

    @cached_property
    def world(self) -> ResolvedWorld:
        """The model with its replicas counted."""
        return resolve(self.model, self.ranks_of_replica)

    @property
    def ranks_of_replica(self) -> int | None:
        """Ranks of the world that one replica of the layout has; None if that is not known."""
        if not self.is_valid("strategy"):
            return None
        size, replicas = self.world_size, self.replicas
        # What is not a number is rejected as a world size, what they cannot share by the strategy.
        if replicas == 1 or not isinstance(size, int):
            return size
        return None if size % replicas else size // replicas

    @property
    def replicas(self) -> int:
        """Replicas of the layout, between which a strategy exchanges."""
        return 1 if self.strategy is None else self.strategy.replicas

    @property
    def sizes(self) -> Mapping[str, ModuleParallelismConfig]:
        """Module -> its sizes, data_parallel filled in where that could be done."""
        return self.world.sizes

    @cached_property
    def samples_per_microbatch(self) -> int:
        """Samples of a micro-batch over all replicas, 0 if unknown."""
        language = self.model.llm_module_name
        if self.data is None or language not in self.sizes or not self.has_valid_sizes(language):
            return 0
        if not self.is_valid("data.base_batch_size", "model.llm_module_name"):
            return 0
        return self.data.base_batch_size * (self.sizes[language].data_parallel or 0)

    @cached_property
    def global_batch_size(self) -> int:
        """Samples per optimizer step, 0 if unknown."""
        if self.data is None or not self.is_valid("data.num_microbatches"):
            return 0
        return self.samples_per_microbatch * self.data.num_microbatches

    @cached_property
    def cuts(self) -> Mapping[str, ParallelSizes]:
        """Module -> its sizes as the rules of layouts read them; what is unknown is 0."""
        return {name: self._cut(module) for name, module in self.sizes.items()}

    def _cut(self, module: ModuleParallelismConfig) -> ParallelSizes:
        replicas, samples = module.data_parallel or 0, self.samples_per_microbatch
        # Where it would be below 1, the samples are too few.
        return sizes_of(
            module, replicas, max(1, samples // replicas) if replicas and samples else 0
        )

    @cached_property
    def graph_is_valid(self) -> bool:
        """Whether it is known which module feeds which, and which is the language module."""
        if not self.is_valid("model.llm_module_name", "model.topology"):
            return False
        graph = self.model.module_topology
        known = self.model.module_parallelisms.keys() >= {*names_of(graph)}
        return known and not find_cycle(graph)

    def networks(
        self, names: Iterable[str] | None = None
    ) -> Iterator[tuple[str, ModuleArchitecture]]:
        """Yield the networks that could be read, of all modules or of some."""
        networks = self.model.module_architectures
        for name in networks if names is None else names:
            if name in networks and self.is_valid(f"model.module_architectures.{name}"):
                yield name, networks[name]

    def is_valid(self, *paths: str) -> bool:
        """Return whether nothing at, above or below any of the paths was rejected before."""
        return not self.invalid_paths or not any(
            bad == path or bad.startswith(path + ".") or path.startswith(bad + ".")
            for bad in self.invalid_paths
            for path in paths
        )

    @cached_property
    def subjects(self) -> dict[str, Subject]:
        """Module -> what rules read of it, for as long as the context lives."""
        return {}

    @cached_property
    def absent_sections(self) -> frozenset[str]:
        """The sections that the config does not have."""
        sections = ("data", "runtime", "prediction", "strategy")
        return frozenset(name for name in sections if getattr(self, name) is None)

    def value_at(self, path: str) -> object:
        """Return the value at a path; None where there is none."""
        value: Any = self
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
        return value

    def has_valid_sizes(self, *names: str) -> bool:
        """Return whether the sizes of the modules can be relied on."""
        paths = (f"model.module_parallelisms.{name}" for name in names)
        return not self.invalid_paths or self.is_valid(*paths)
