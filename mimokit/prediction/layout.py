"""Layouts: deployment mode, parallel sizes of all modules, and paths through their graph."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

from mimokit.architecture.modules import Model, MultimodalModel
from mimokit.axes import COUNTS, LAYOUT_FIELDS, Axis, Choice
from mimokit.config.graph import downstream, topological_order
from mimokit.config.runtime import DeploymentMode
from mimokit.config.sizes import RECOMPUTE_NAMES, Numbers, ParallelSizes
from mimokit.prediction.workload import Workload

Edges = Iterable[tuple[str, tuple[str, ...]]]
"""(Module, the modules that it feeds), feeders first."""


def before(
    edges: Edges,
    own: Mapping[str, Numbers],
    between: Callable[[str, str], Numbers] = lambda source, target: 0.0,
) -> dict[str, Numbers]:
    """Return module -> the sum along the heaviest path that leads to it, without itself.

    Args:
        own: what each module adds.
        between: what a move from one module to another adds.
    """
    sums: dict[str, Numbers] = {}
    for name, targets in edges:
        start = sums.setdefault(name, 0.0)
        for target in targets:
            reached = start + own[name] + between(name, target)
            sums[target] = np.maximum(sums[target], reached) if target in sums else reached
    return sums


def heaviest(
    edges: Edges,
    own: Mapping[str, Numbers],
    between: Callable[[str, str], Numbers] = lambda source, target: 0.0,
) -> Numbers:
    """Return the sum along the heaviest path; see `before`."""
    reached = before(edges, own, between)
    return reduce(np.maximum, (reached[name] + own[name] for name in own))


def around(edges: Edges, own: Mapping[str, Numbers]) -> dict[str, tuple[Numbers, Numbers]]:
    """Return module -> what is before it, and what the heaviest path has behind it."""
    reached, whole = before(edges, own), heaviest(edges, own)
    return {name: (reached[name], whole - reached[name] - own[name]) for name in own}


_SHOWN = (Axis.TENSOR, Axis.CONTEXT, Axis.PIPELINE, Axis.VIRTUAL_PIPELINE, Axis.EXPERT)
"""Axes in the text of a layout, in this order, if their size is above 1."""

_WRITTEN = tuple(choice for choice in LAYOUT_FIELDS if choice in (*COUNTS, Choice.RECOMPUTE))
"""Fields of a module in the JSON of a layout."""

LANGUAGE = "language"
"""Name of the language module in Megatron-Bridge, and in configs that do not allow its own name."""


@dataclass(frozen=True)
class Layout:
    """Deployment mode and parallel sizes of all modules.

    Attributes:
        modules: module -> its sizes. In homogeneous mode encoders have the language model's sizes
            except for pipeline, virtual and expert, which are 1: encoders run in its first stage.
            Searches and experiments use such layouts. Predictions also accept encoders with the
            same number of stages as the language model, spread over all of its stages.
        language: name of the language module; by default the last of `modules`.
        encoder_microbatches: micro-batches for which colocated encoders compute at once. None: as
            the workload has it.
        feeds: module -> the modules that it feeds, of each that does not feed the language module
            alone; see `connected`.
    """

    mode: DeploymentMode
    modules: Mapping[str, ParallelSizes]
    language: str = ""
    encoder_microbatches: int | None = None
    feeds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.language and self.modules:
            object.__setattr__(self, "language", list(self.modules)[-1])

    @property
    def others(self) -> tuple[str, ...]:
        """Names of all modules but the language module."""
        return tuple(name for name in self.modules if name != self.language)

    @property
    def topology(self) -> dict[str, tuple[str, ...]]:
        """Module -> the modules that it feeds, for every module, feeders first."""
        behind = downstream(self.feeds, self.language)
        usual = {
            name: () if name in behind or name == self.language else (self.language,)
            for name in self.modules
        }
        graph = {**usual, **self.feeds}
        return {name: graph[name] for name in topological_order(graph)}

    @property
    def gpus(self) -> int:
        """Number of GPUs that the layout needs."""
        ranks = [int(sizes.ranks) for sizes in self.modules.values()]
        return sum(ranks) if self.mode == "heterogeneous" else max(ranks)

    def __str__(self) -> str:
        parts = [f"{name} {sizes_text(sizes)}" for name, sizes in self.modules.items()]
        if self.encoder_microbatches is not None:
            parts.append(f"encoders for {self.encoder_microbatches} micro-batches at once")
        return f"{self.mode}: " + "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        modules = {name: sizes_mapping(sizes) for name, sizes in self.modules.items()}
        plain = {"mode": self.mode, "gpus": self.gpus, "modules": modules}
        if self.encoder_microbatches is not None:
            plain["encoder_microbatches"] = self.encoder_microbatches
        return plain


def pairs_of_others(
    mode: str, topology: Mapping[str, tuple[str, ...]], language: str
) -> Iterator[tuple[str, str]]:
    """Yield pairs of other modules whose replicas hand each other samples, or share them."""
    others = [name for name in topology if name != language]
    if mode == "colocated":  # every rank reads its samples once for all of its modules
        yield from ((name, before) for before, name in itertools.combinations(others, 2))
    for name in others if mode == "heterogeneous" else ():
        yield from ((name, to) for to in topology[name] if to != language)


def connected(layout: Layout, model: Model) -> Layout:
    """Return a layout whose modules feed each other as those of a model do."""
    if not isinstance(model, MultimodalModel):
        return layout
    language = model.language.name
    feeds = {layout.language if name == language else name: fed for name, fed in model.feeds}
    return layout if layout.feeds == feeds else replace(layout, feeds=feeds)


def sizes_text(sizes: ParallelSizes) -> str:
    """Return sizes in short form, such as TP2 PP4 DP8, without sizes of 1."""
    words = [f"{axis.label}{int(sizes.size(axis))}" for axis in _SHOWN if int(sizes.size(axis)) > 1]
    words += [f"{Axis.DATA.label}{int(sizes.data)}", f"micro-batch {int(sizes.micro_batch)}"]
    if int(sizes.recompute):
        words.append(f"recompute {RECOMPUTE_NAMES[int(sizes.recompute)]}")
    if int(sizes.instances) > 1:
        words.append(f"{int(sizes.instances)} optimizer instances")
    return " ".join(words)


def sizes_mapping(sizes: ParallelSizes) -> dict[str, Any]:
    """Return sizes by their config names, with those that `ModuleParallelismConfig` lacks."""
    counts: dict[str, Any] = {LAYOUT_FIELDS[choice]: int(sizes.size(choice)) for choice in _WRITTEN}
    return {**counts, LAYOUT_FIELDS[Choice.RECOMPUTE]: RECOMPUTE_NAMES[int(sizes.recompute)]}


def rank_offsets(layout: Layout) -> Mapping[str, int]:
    """Return the first rank of each module. Modules with separate ranks follow each other."""
    offsets, begin = {}, 0
    for name, sizes in layout.modules.items():
        offsets[name] = begin
        begin += int(sizes.ranks) if layout.mode == "heterogeneous" else 0
    return offsets


def plain_name(name: str, layout: Layout) -> str:
    """Return a module's name in a form that configs allow."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return name
    return LANGUAGE if name == layout.language else re.sub(r"[^A-Za-z0-9_-]+", "_", name)


def micro_batches(layout: Layout, workload: Workload) -> int:
    """Return the number of micro-batches of a step."""
    return int(workload.micro_batches(layout.modules[layout.language]))
