"""A layout as the predictor knows it: more than ranks, less than a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mimokit.architecture.parallel_sizes import RECOMPUTE_NAMES, ParallelSizes
from mimokit.axes import COUNTS, LAYOUT_FIELDS, Axis, Choice
from mimokit.config.runtime import DeploymentMode

_SHOWN = (Axis.TENSOR, Axis.CONTEXT, Axis.PIPELINE, Axis.VIRTUAL_PIPELINE, Axis.EXPERT)
"""The axes that layouts name where their size is above 1, in this order."""

_WRITTEN = tuple(one for one in LAYOUT_FIELDS if one in (*COUNTS, Choice.RECOMPUTE))
"""What the JSON of a layout holds of a module."""


@dataclass(frozen=True)
class Layout:
    """How a model lies on GPUs.

    Attributes:
        mode: homogeneous, colocated or heterogeneous.
        modules: module -> its sizes. In homogeneous mode encoders have the language model's sizes
            except for stages, chunks and expert parallelism, of which they have 1 each: they lie
            whole in its first stage. That is what searches try and what experiments hold;
            predictions also take encoders of as many stages as the language model has, which are
            spread over all of them.
        language: name of the language module; by default the last of `modules`.
    """

    mode: DeploymentMode
    modules: Mapping[str, ParallelSizes]
    language: str = ""

    def __post_init__(self) -> None:
        if not self.language and self.modules:
            object.__setattr__(self, "language", list(self.modules)[-1])

    @property
    def encoders(self) -> tuple[str, ...]:
        """Names of all other modules."""
        return tuple(name for name in self.modules if name != self.language)

    @property
    def gpus(self) -> int:
        """GPUs that the layout takes."""
        ranks = [int(sizes.ranks) for sizes in self.modules.values()]
        return sum(ranks) if self.mode == "heterogeneous" else max(ranks)

    def __str__(self) -> str:
        parts = [f"{name} {sizes_text(sizes)}" for name, sizes in self.modules.items()]
        return f"{self.mode}: " + "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        modules = {name: sizes_mapping(sizes) for name, sizes in self.modules.items()}
        return {"mode": self.mode, "gpus": self.gpus, "modules": modules}


def sizes_text(sizes: ParallelSizes) -> str:
    """Return sizes in the short hand of the field, ones left out."""
    words = [f"{axis.label}{int(sizes.size(axis))}" for axis in _SHOWN if int(sizes.size(axis)) > 1]
    words += [f"{Axis.DATA.label}{int(sizes.data)}", f"micro-batch {int(sizes.micro_batch)}"]
    if int(sizes.recompute):
        words.append(f"recompute {RECOMPUTE_NAMES[int(sizes.recompute)]}")
    if int(sizes.instances) > 1:
        words.append(f"{int(sizes.instances)} optimizer instances")
    return " ".join(words)


def sizes_mapping(sizes: ParallelSizes) -> dict[str, Any]:
    """Return sizes by the names of `ModuleParallelismConfig`, and what it does not know."""
    found: dict[str, Any] = {LAYOUT_FIELDS[one]: int(sizes.size(one)) for one in _WRITTEN}
    return {**found, LAYOUT_FIELDS[Choice.RECOMPUTE]: RECOMPUTE_NAMES[int(sizes.recompute)]}
