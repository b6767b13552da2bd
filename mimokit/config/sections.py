"""The sections of a config, as plans and ranks read them after all checks."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, TypeVar

from pydantic import Field

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.base import ConfigModel, Name, NotNegative
from mimokit.config.data import DataConfig
from mimokit.config.errors import ConfigError, Problem
from mimokit.config.graph import ModuleGraph, edges, module_graph, paths, upstream
from mimokit.config.parallelism import ModuleParallelismConfig
from mimokit.config.prediction import PredictionConfig
from mimokit.config.runtime import DeploymentMode, RuntimeConfig
from mimokit.config.strategy import StrategyConfig

EntryT = TypeVar("EntryT")
MOST_MODULES = 128
"""Of a model. Rules compare modules in pairs."""


class ModelSection(ConfigModel):
    """The modules of a model, their parallel sizes and their networks."""

    llm_module_name: Name
    """The module that the encoders feed."""

    deployment_mode: DeploymentMode
    """homogeneous (same sizes, same ranks), colocated (separate sizes, same ranks) or
    heterogeneous (separate sizes, separate ranks)."""

    module_parallelisms: Annotated[
        dict[Name, ModuleParallelismConfig], Field(min_length=1, max_length=MOST_MODULES)
    ]
    """Module -> its parallel sizes; the language module is one of them."""

    special_token_ids: dict[Name, NotNegative] = Field(default_factory=dict)
    """Encoder that feeds the language module -> the placeholder token id that its rows replace."""

    module_architectures: dict[Name, ModuleArchitecture] = Field(default_factory=dict)
    """Module -> its network. May be empty if only ranks are planned."""

    encoder_module_name: Name | None = None
    """The first encoder, for code that supports only one."""

    topology: dict[Name, list[Name]] | None = None
    """Module -> the modules that it feeds; None: every encoder feeds the language module. Encoders
    that feed several modules, and modules behind the language module, need heterogeneous mode."""

    allow_rank_gaps: bool = False
    """In heterogeneous mode, warn about ranks without a module instead of rejecting them: they
    wait."""

    @property
    def total_world_size(self) -> int:
        """Ranks of the modules; raises `ConfigError` if a missing data_parallel leaves it open."""
        needed = self.needed_world_size
        if needed is None:
            raise ConfigError(self.unknown_world_size)
        return needed

    @property
    def needed_world_size(self) -> int | None:
        """Ranks of the modules together, None where a missing data_parallel leaves it open.

        On shared ranks any complete module determines it; the language module is tried first.
        """
        stated = self.module_parallelisms
        names = dict.fromkeys((self.llm_module_name, *stated))
        complete = [stated[n] for n in names if n in stated and stated[n].data_parallel is not None]
        if self.deployment_mode == "heterogeneous":
            if len(complete) < len(stated):
                return None
            return max(module.rank_offset + module.total_ranks for module in complete)
        return complete[0].total_ranks if complete else None

    @property
    def unknown_world_size(self) -> tuple[Problem, ...]:
        """One problem per module whose missing data_parallel leaves the world size open."""
        return tuple(
            Problem(
                name,
                "data_parallel",
                None,
                f"Module '{name}': data_parallel is missing and without a world size it cannot be "
                "worked out; give --world-size (world_size=... in Python) or data_parallel.",
            )
            for name, module in self.module_parallelisms.items()
            if module.data_parallel is None
        )

    @property
    def encoder_module_names(self) -> tuple[str, ...]:
        """The modules whose output reaches the language module, in the order they were written."""
        return self._graph.encoders

    @property
    def adapter_module_names(self) -> tuple[str, ...]:
        """The encoders that read the rows of others, in the order they were written."""
        return self._graph.adapters

    @property
    def input_module_names(self) -> tuple[str, ...]:
        """The encoders that read items of the data, in the order they were written."""
        adapters = self.adapter_module_names
        return tuple(name for name in self.encoder_module_names if name not in adapters)

    @property
    def input_token_ids(self) -> dict[str, tuple[int, ...]]:
        """Encoder that reads items -> the token ids that stand for its rows in a text.

        They stand there once for every path to the language module: with the id of its last module.
        """
        ids, names = self.special_token_ids, self.input_module_names
        ends = {name: Counter(self.ends_of(name)).elements() for name in names}
        return {name: tuple(ids[last] for last in ends[name]) for name in names}

    def ends_of(self, encoder: str) -> dict[str, int]:
        """Return the last modules of its paths to the language module -> the paths that end so."""
        graph, language = self.module_topology, self.llm_module_name
        last = [name for name in self.encoder_module_names if language in graph[name]]
        ends = {name: paths(graph, encoder, name) for name in last}
        return {name: number for name, number in ends.items() if number}

    def paths_of_items(self, encoder: str) -> int:
        """Return by how many paths items reach an encoder, of all that read items together."""
        return sum(paths(self.module_topology, name, encoder) for name in self.input_module_names)

    def inputs_of(self, encoder: str) -> tuple[str, ...]:
        """Return the encoders whose items an encoder's rows are of, in the order of the config."""
        before = {encoder} | upstream(self.module_topology, encoder)
        return tuple(name for name in self.input_module_names if name in before)

    def sends_grids(self, encoder: str) -> bool:
        """Tell whether the rows of an encoder come with the grids of its items, in tokens.

        They do where images differ in size, and to and from adapters.
        """
        adapters, fed = self.adapter_module_names, self.module_topology[encoder]
        any_size = self.get_architecture(encoder).any_image_size
        return any_size or encoder in adapters or not set(adapters).isdisjoint(fed)

    def has_image_grids(self, encoder: str) -> bool:
        """Tell whether all items whose rows come from an encoder are images that differ in size."""
        return all(self.get_architecture(name).any_image_size for name in self.inputs_of(encoder))

    def feeders_of(self, adapter: str) -> tuple[str, ...]:
        """Return the encoders that feed an adapter, in the order of their first input."""
        feeding = [n for n in self.encoder_module_names if adapter in self.module_topology[n]]
        first = self.input_module_names.index
        return tuple(sorted(feeding, key=lambda name: first(self.inputs_of(name)[0])))

    def receivers_of(self, encoder: str) -> tuple[str, ...]:
        """Return the modules that take the rows of an encoder, each in its own width.

        The language module comes first, adapters follow by name. Tensors are named in this order,
        so that they do not depend on the order in which a config lists the modules.
        """
        language = self.llm_module_name
        return tuple(sorted(self.module_topology[encoder], key=lambda n: (n != language, n)))

    @property
    def decoder_module_names(self) -> tuple[str, ...]:
        """The modules that the language module's output reaches, in the order they were written."""
        return self._graph.decoders

    @property
    def reconstructing_names(self) -> tuple[str, ...]:
        """Those of them that make images or sound, in the order they were written."""
        return self._of(("vision", "audio"), self.decoder_module_names)

    def reading(self, modality: str) -> tuple[str, ...]:
        """Return the encoders that read images ("vision") or sound, as they were written."""
        return self._of((modality,), self.input_module_names)

    def _of(self, modalities: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        networks = self.module_architectures
        return tuple(n for n in names if n in networks and networks[n].modality in modalities)

    def reconstructed_by(self, decoder: ModuleArchitecture) -> str | None:
        """Return the encoder whose items a decoder makes again; None if that is not clear."""
        reading = self.reading(decoder.modality)
        named = [name for name in reading if decoder.reconstructs in (None, name)]
        return named[0] if len(named) == 1 else None

    @property
    def module_topology(self) -> dict[str, tuple[str, ...]]:
        """Module -> the modules that it feeds, for every module, in the order they were written."""
        return dict(self._graph.topology)

    @property
    def _graph(self) -> ModuleGraph:
        stated = None if self.topology is None else edges(self.topology)
        return module_graph(tuple(self.module_parallelisms), stated, self.llm_module_name)

    @property
    def frozen_modules(self) -> frozenset[str]:
        """The modules of which nothing is trained."""
        networks = self.module_architectures
        return frozenset(name for name, network in networks.items() if network.is_frozen)

    def is_frozen(self, name: str) -> bool:
        """Tell whether nothing in a module is trained."""
        return name in self.frozen_modules

    def has_backward(self, name: str) -> bool:
        """Tell whether a gradient passes a module: it, or one that feeds it, is trained."""
        before = upstream(self.module_topology, name) | {name}
        return not before <= self.frozen_modules

    def layers_have_backward(self, name: str) -> bool:
        """Tell whether a gradient passes the layers of a module, not its projector alone."""
        network = self.module_architectures.get(name)
        trained = network is None or "encoder" not in network.frozen_parts
        return trained or not upstream(self.module_topology, name) <= self.frozen_modules

    def get_parallelism(self, name: str) -> ModuleParallelismConfig:
        """Return the sizes of a module; raise `ConfigError` if there is none of that name."""
        return _entry(name, "module_parallelisms", self.module_parallelisms)

    def get_architecture(self, name: str) -> ModuleArchitecture:
        """Return the network of a module; raise `ConfigError` if there is none of that name."""
        return _entry(name, "module_architectures", self.module_architectures)


def _entry(name: str, field: str, known: Mapping[str, EntryT]) -> EntryT:
    if name in known:
        return known[name]
    names = ", ".join(known) or "none"
    sentence = f"Module '{name}': it is not in {field}; the modules there are: {names}."
    raise ConfigError([Problem(name, field, None, sentence)])


class ExperimentSections(ConfigModel):
    """One experiment; `ExperimentConfig` checks it and has other layouts."""

    model: ModelSection
    """Modules, ranks and networks."""

    data: DataConfig
    """Batches and samples."""

    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)
    """Steps, metrics and optimizer."""

    name: str = "experiment"
    """Name of the run. From a file: its name without the suffix."""

    prediction: PredictionConfig | None = None
    """What a prediction assumes. None: the defaults."""

    strategy: StrategyConfig | None = None
    """Replicas of the layout and what they exchange. None: one replica."""

    @property
    def inner_runtime(self) -> RuntimeConfig:
        """The runtime section, with the inner optimizer of the strategy as its optimizer."""
        inner = None if self.strategy is None else self.strategy.inner_optimizer
        if inner is None:
            return self.runtime
        names = {"learning_rate": inner.lr, "weight_decay": inner.weight_decay}
        names["adam_epsilon"] = inner.eps
        named = {name: value for name, value in names.items() if value is not None}
        return self.runtime.model_copy(update=named)

    @property
    def replicas(self) -> int:
        """Replicas of the layout, between which a strategy exchanges."""
        return 1 if self.strategy is None else self.strategy.replicas

    @property
    def total_world_size(self) -> int:
        """Ranks of all replicas of the layout; `ConfigError` if a data_parallel is missing."""
        return self.model.total_world_size * self.replicas

    def tokens_of(self, encoder: str) -> int:
        """Return the most tokens per sample that the rows of an encoder become on one path.

        The paths on which items reach the last module before the language module have equal shares
        of its tokens; of several last modules that with the fewest decides.
        """
        model, own = self.model, self.model.paths_of_items(encoder)
        return min(
            self.data.modality_seq_length(last) * own // model.paths_of_items(last)
            for last in model.ends_of(encoder)
        )
