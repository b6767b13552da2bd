"""A claim: what is said, the run that proves it, and the fault that breaks it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from mimokit.config import ExperimentConfig
from tests.claims.faults import Plant
from tests.claims.layouts import Make

Shown = Literal["loss", "gradients", "weights"]
STEPS = 2
"""Enough to see a wrong gradient, and the weights that follow from it."""


@dataclass(frozen=True)
class Claim:
    """A row of docs/limits.md, its proof and its mutant.

    Attributes:
        area: the table that it stands in.
        title: what is claimed.
        make: returns the layout that proves it, of the fewest ranks on which the fault shows.
        fault: what breaks it.
        shows: what the fault changes in one step, by `least` at least: the loss; a tensor's
            gradients or weights, relative to its largest entry; a norm counts as a gradient.
        steps: how many steps of the right layout are compared.
    """

    area: str
    title: str
    make: Make
    fault: Plant
    shows: Shown = "gradients"
    least: float = 1e-3
    steps: int = STEPS

    @cached_property
    def config(self) -> ExperimentConfig:
        """The layout."""
        return self.make()

    @property
    def ranks(self) -> int:
        """How many it takes, of all replicas."""
        return self.config.model.total_world_size * self.config.replicas

    @property
    def name(self) -> str:
        """The title and the mode, which no two claims share."""
        return f"{self.title}, {self.config.model.deployment_mode}"


def of(area: str, *runs: tuple[str, Make, Plant], **options: object) -> Iterator[Claim]:
    """Yield claims of one table.

    Args:
        runs: title, layout and fault of each.
        options: other fields of all of them.
    """
    for title, make, fault in runs:
        yield Claim(area, title, make, fault, **options)  # type: ignore[arg-type]
