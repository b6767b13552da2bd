"""The objective of a search and the constraints on layouts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from mimokit.axes import LAYOUT_FIELDS, SIZE_FIELDS, Axis, Choice
from mimokit.config.errors import Problem, refuse_if_any, unknown_name
from mimokit.config.runtime import DeploymentMode
from mimokit.config.sizes import RECOMPUTE_NAMES, Numbers

Objective = Literal["step_time", "cost", "memory"]

MODES: tuple[DeploymentMode, ...] = get_args(DeploymentMode)

SEARCHED: tuple[Axis | Choice, ...] = (
    Axis.TENSOR,
    Axis.CONTEXT,
    Axis.PIPELINE,
    Axis.VIRTUAL_PIPELINE,
    Axis.EXPERT,
    Axis.DATA,
    Choice.MICRO_BATCH,
    Choice.RECOMPUTE,
    Choice.OPTIMIZER_INSTANCES,
)
"""What a search varies, in the order in which it does."""

DIMENSIONS: Mapping[str, str] = {LAYOUT_FIELDS[choice]: SIZE_FIELDS[choice] for choice in SEARCHED}
"""Dimension of the search, as a user writes it -> field of `ParallelSizes`."""

EVERY_MODULE = "*"
LANGUAGE = "language"
"""What the language model can be called in constraints, whatever its own name."""


@dataclass(frozen=True)
class Constraints:
    """Constraints on layouts.

    Attributes:
        memory_share: share of a GPU's memory that may be planned; the rest is for what is not
            predicted (fragments, communication buffers) and for the predictor's own error.
        sizes: module, "language" or "*" for every module -> dimension -> the values to try, instead
            of all that make sense. Dimensions are called as in `DIMENSIONS`; recompute takes names.
    """

    modes: Sequence[DeploymentMode] = MODES
    memory_share: float = 0.9
    most_seconds: float | None = None
    least_gpus: int = 1
    sizes: Mapping[str, Mapping[str, Sequence[int | str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for mode in self.modes:
            if mode not in MODES:
                raise unknown_name("Mode", mode, MODES)
        for dimensions in self.sizes.values():
            for name in dimensions:
                if name not in DIMENSIONS:
                    raise unknown_name("Dimension", name, DIMENSIONS)
        refuse_if_any(self._problems())

    def values(self, module: str, dimension: str, *, is_language: bool) -> tuple[int, ...] | None:
        """Return the values to try, as `ParallelSizes` counts them, or None for all."""
        for name in (module, *([LANGUAGE] if is_language else []), EVERY_MODULE):
            if dimension in self.sizes.get(name, {}):
                chosen = self.sizes[name][dimension]
                return tuple(
                    RECOMPUTE_NAMES.index(value) if isinstance(value, str) else int(value)
                    for value in chosen
                )
        return None

    def _problems(self) -> Iterator[Problem]:
        if not 0 < self.memory_share <= 1:
            yield _problem("memory_share", self.memory_share, "above 0 and at most 1")
        if self.most_seconds is not None and not self.most_seconds > 0:
            yield _problem("most_seconds", self.most_seconds, "above 0")
        if not self.modes:
            yield _problem("modes", (), f"at least one of {', '.join(MODES)}")
        for module, dimensions in self.sizes.items():
            for name, values in dimensions.items():
                if name == "recompute" and set(values) <= {*RECOMPUTE_NAMES} and values:
                    continue
                if name == "recompute":
                    right = f"a list of {', '.join(RECOMPUTE_NAMES)}"
                elif values and all(isinstance(value, int) and value >= 1 for value in values):
                    continue
                else:
                    right = "a list of whole numbers of at least 1"
                yield _problem(f"sizes.{module}.{name}", values, right)


def check_objective(objective: str) -> None:
    """Reject an unknown objective."""
    if objective not in get_args(Objective):
        raise unknown_name("Objective", objective, get_args(Objective))


def score(objective: Objective, seconds: Numbers, memory: Numbers, gpus: Numbers) -> Numbers:
    """Return the objective, which a search minimises: seconds, GPU-seconds of a step, or bytes."""
    return {"step_time": seconds, "cost": seconds * gpus, "memory": memory}[objective]


def _problem(name: str, value: object, right: str) -> Problem:
    sentence = f"Constraints: {name} is {value}; it must be {right}."
    return Problem("constraints", name, value, sentence)
