"""The graph of pipeline stages: every module cut into stages, and modules joined end to end."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mimokit.config.graph import Topology, names_of, topological_order


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage of one module.

    Attributes:
        index: its number among all stages; a stage comes after all that it receives from.
        place: its number within the module, 0-based.
        position: stages before it on the longest path that leads to it; megatron-core's number of
            a rank's stage if several modules are joined.
        share: of an encoder that several sets of ranks compute, each for samples of its own: the
            number of the set.
    """

    index: int
    module: str
    place: int
    position: int
    share: int = 0

    def __str__(self) -> str:
        return f"stage {self.index} ('{self.module}' {self.place})"


@dataclass(frozen=True, slots=True)
class StageEdge:
    """Activations cross it from stage `source` to stage `destination`, gradients the other way.

    Attributes:
        modality: the module whose output crosses.
    """

    index: int
    source: int
    destination: int
    modality: str


@dataclass(frozen=True)
class StageGraph:
    """All stages and the edges between them.

    Attributes:
        stages: by index, the stages of a module next to each other.
        edges: by index, sorted by source, then by destination.
        topology: (module, the modules that it feeds), feeders first.
        workers: the stages that the same ranks work on; a stage on separate ranks is one of them.
        bridged: edges that a bridge between modules on shared ranks crosses; all others are
            crossed by messages.
    """

    stages: tuple[Stage, ...]
    edges: tuple[StageEdge, ...]
    topology: tuple[tuple[str, tuple[str, ...]], ...]
    workers: tuple[tuple[int, ...], ...]
    bridged: frozenset[int] = frozenset()

    @cached_property
    def worker_of(self) -> tuple[int, ...]:
        """By stage index: the index of its worker."""
        worker_of = {stage: index for index, stages in enumerate(self.workers) for stage in stages}
        return tuple(worker_of[stage.index] for stage in self.stages)

    @cached_property
    def feeding(self) -> frozenset[int]:
        """The stages whose output crosses a bridge: encoders on the ranks that they feed."""
        return frozenset(edge.source for edge in self.edges if edge.index in self.bridged)

    @cached_property
    def beside(self) -> frozenset[int]:
        """The stages of encoders on ranks of the language model, which is the last of a worker."""
        modules = [stage.module for stage in self.stages]
        return frozenset(s for w in self.workers for s in w if modules[s] != modules[w[-1]])

    @cached_property
    def shared(self) -> frozenset[int]:
        """The stages that several sets of ranks compute together."""
        of_module = Counter((stage.module, stage.place) for stage in self.stages)
        return frozenset(s.index for s in self.stages if of_module[s.module, s.place] > 1)

    @cached_property
    def total_stages(self) -> int:
        """Stages on the longest path through the graph."""
        return 1 + max(stage.position for stage in self.stages)

    @cached_property
    def incoming(self) -> tuple[tuple[StageEdge, ...], ...]:
        """By stage index: the edges that end at it."""
        return self._by_stage("destination")

    @cached_property
    def outgoing(self) -> tuple[tuple[StageEdge, ...], ...]:
        """By stage index: the edges that begin at it."""
        return self._by_stage("source")

    def _by_stage(self, end: str) -> tuple[tuple[StageEdge, ...], ...]:
        at: list[list[StageEdge]] = [[] for _ in self.stages]
        for edge in self.edges:
            at[getattr(edge, end)].append(edge)
        return tuple(map(tuple, at))

    def stage(self, module: str, place: int) -> Stage:
        """Return a stage by its place in its module; -1 is the last."""
        stages = [stage for stage in self.stages if stage.module == module]
        if not -len(stages) <= place < len(stages):
            raise KeyError(f"'{module}' has no stage {place}")
        return stages[place]


def stage_graph(
    topology: Topology,
    pipeline_parallel: Mapping[str, int],
    virtual_pipeline: Mapping[str, int] | None = None,
) -> StageGraph:
    """Return the graph of modules that feed each other and have separate ranks.

    Args:
        pipeline_parallel: module -> the sets of ranks that it is cut over.
        virtual_pipeline: module -> stages of each of these sets, 1 where it is missing. A set has
            every `pipeline_parallel`-th stage of the module.

    Raises:
        ValueError: a cycle, a module without a size, a size below 1, or one of several modules
            that is connected to no other.
    """
    names = names_of(topology)
    fed = {target for targets in topology.values() for target in targets}
    for name in names:
        if pipeline_parallel.get(name, 0) < 1:
            raise ValueError(f"'{name}' needs a pipeline_parallel size of 1 or more")
        if len(names) > 1 and name not in fed and not topology.get(name):
            raise ValueError(f"'{name}' feeds no module, and no module feeds it")
    order = topological_order(topology)
    chunks = virtual_pipeline or {}
    counts = {name: pipeline_parallel[name] * chunks.get(name, 1) for name in order}
    stages = _stages(order, topology, counts)
    workers = [
        tuple(s.index for s in stages if s.module == name and s.place % size == place)
        for name in order
        for size in [pipeline_parallel[name]]
        for place in range(size)
    ]
    return StageGraph(
        stages=stages,
        edges=_edges(stages, order, topology),
        topology=tuple((name, tuple(topology.get(name, ()))) for name in order),
        workers=tuple(workers),
    )


def shared_graph(
    topology: Topology,
    modules: Sequence[str],
    pipeline_parallel: int = 1,
    virtual_pipeline: Mapping[str, int] | None = None,
    shares: int = 1,
    staged: Collection[str] = (),
) -> StageGraph:
    """Return the graph of modules that share their ranks, computed in this order.

    Args:
        modules: the language model last.
        pipeline_parallel: sets of ranks that it is cut over.
        virtual_pipeline: module -> stages on each of these sets, 1 where it is missing.
        shares: sets of ranks, from the first on, that compute the other modules.
        staged: those of the others that have stages on each set of ranks instead.
    """
    *others, language = modules
    cut = {name: pipeline_parallel if name in staged else 1 for name in others}
    cut[language] = pipeline_parallel
    plain = stage_graph({n: topology[n] for n in modules}, cut, virtual_pipeline)
    stages: list[Stage] = []
    now: dict[int, list[int]] = {}  # index of a stage -> those of its shares
    for stage in plain.stages:
        count = 1 if cut[stage.module] > 1 or stage.module == language else shares
        first = len(stages)
        now[stage.index] = list(range(first, first + count))
        stages += [replace(stage, index=first + share, share=share) for share in range(count)]
    edges = _numbered(
        (source, now[edge.destination][share % len(now[edge.destination])], edge.modality)
        for edge in plain.edges
        for share, source in enumerate(now[edge.source])
    )
    modules_of = [stage.module for stage in stages]
    between = [
        edge
        for edge in edges
        if modules_of[edge.source] not in (modules_of[edge.destination], *staged)
    ]
    workers = tuple(
        tuple(
            stage.index
            for name in modules
            for stage in stages
            if stage.module == name
            and place == (stage.place % pipeline_parallel if cut[name] > 1 else stage.share)
        )
        for place in range(pipeline_parallel)
    )
    return replace(
        plain,
        stages=tuple(stages),
        edges=edges,
        workers=workers,
        bridged=frozenset(edge.index for edge in between),
    )


def _stages(
    order: tuple[str, ...], topology: Topology, pipeline_parallel: Mapping[str, int]
) -> tuple[Stage, ...]:
    begin = dict.fromkeys(order, 0)
    stages: list[Stage] = []
    for name in order:
        for place in range(pipeline_parallel[name]):
            stages.append(Stage(len(stages), name, place, begin[name] + place))
        for target in topology.get(name, ()):
            begin[target] = max(begin[target], begin[name] + pipeline_parallel[name])
    return tuple(stages)


def _edges(
    stages: tuple[Stage, ...], order: tuple[str, ...], topology: Topology
) -> tuple[StageEdge, ...]:
    of = {name: [s.index for s in stages if s.module == name] for name in order}
    pairs: list[tuple[int, int, str]] = []
    for name in order:
        pairs += [(here, here + 1, name) for here in of[name][:-1]]
        pairs += [(of[name][-1], of[target][0], name) for target in topology.get(name, ())]
    return _numbered(pairs)


def _numbered(ends: Iterable[tuple[int, int, str]]) -> tuple[StageEdge, ...]:
    return tuple(StageEdge(number, *edge) for number, edge in enumerate(sorted(set(ends))))
