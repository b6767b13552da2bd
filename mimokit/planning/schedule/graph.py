"""The graph of pipeline stages: every module cut into stages, and modules joined end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """

    index: int
    module: str
    place: int
    position: int

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
    """

    stages: tuple[Stage, ...]
    edges: tuple[StageEdge, ...]
    topology: tuple[tuple[str, tuple[str, ...]], ...]
    workers: tuple[tuple[int, ...], ...]

    @cached_property
    def worker_of(self) -> tuple[int, ...]:
        """By stage index: the index of its worker."""
        worker_of = {stage: index for index, stages in enumerate(self.workers) for stage in stages}
        return tuple(worker_of[stage.index] for stage in self.stages)

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
        """Return a stage by its place in its module; -1 is the last.

        Raises:
            KeyError: the module has no such stage.
        """
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
        topology: any graph without a cycle.
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


def shared_graph(topology: Topology, modules: Sequence[str]) -> StageGraph:
    """Return the graph of modules that share all ranks, a stage each, computed in this order."""
    graph = stage_graph({name: topology[name] for name in modules}, dict.fromkeys(modules, 1))
    return replace(graph, workers=(tuple(graph.stage(name, 0).index for name in modules),))


def _stages(
    order: tuple[str, ...], topology: Topology, pipeline_parallel: Mapping[str, int]
) -> tuple[Stage, ...]:
    """Return the stages; a module begins after the last stage of all that feed it."""
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
    return tuple(
        StageEdge(number, source, destination, modality)
        for number, (source, destination, modality) in enumerate(sorted(set(pairs)))
    )
