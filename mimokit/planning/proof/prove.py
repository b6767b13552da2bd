"""The proof of a plan: its claims, each by a function that yields what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mimokit.config import ExperimentConfig
from mimokit.planning.layout import ConfigSource, checked_config, plan_checked
from mimokit.planning.proof.parameters import unheld_parts, unreduced_parts
from mimokit.planning.proof.places import (
    Actions,
    broken_groups,
    differing_sizes,
    unplaced_ranks,
    waits,
    wrong_work,
)
from mimokit.planning.proof.samples import broken_bridges, uncomputed_samples, unread_samples
from mimokit.planning.proof.sizes import unequal_sizes
from mimokit.planning.schedule import ScheduleError
from mimokit.planning.types import LayoutPlan
from mimokit.tables import Report, Section
from mimokit.units import counted

COLUMNS = ("claim", "shown for", "faults")

MOST_FAULTS = 3
"""Faults of a claim that are kept; a wrong plan has one for thousands of ranks."""


@dataclass(frozen=True)
class Claim:
    """A statement about every rank of a plan.

    Attributes:
        shown_for: every rank, or representatives of ranks that are alike.
        faults: sentences, the first of them; none: it is true.
    """

    name: str
    shown_for: str
    faults: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, shown_for: str, faults: Iterable[str]) -> Claim:
        """Return a claim with the first faults that were found."""
        return cls(name, shown_for, tuple(islice(faults, MOST_FAULTS)))


@dataclass(frozen=True, repr=False)
class PlanProof(Report):
    """The claims about a plan."""

    name: str
    ranks: int
    claims: tuple[Claim, ...]

    @property
    def passed(self) -> bool:
        """Whether all claims are true."""
        return not any(claim.faults for claim in self.claims)

    @property
    def verdict(self) -> str:
        """A sentence about the plan; of a wrong one the first fault."""
        if self.passed:
            return (
                f"The plan of {self.name!r} for {self.ranks:,} ranks is right: {len(self.claims)} "
                "claims hold. What its ranks compute is not part of it; `mimokit verify` runs that."
            )
        claim = next(claim for claim in self.claims if claim.faults)
        return f"The plan of {self.name!r} is wrong ({claim.name}): {claim.faults[0]}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "ranks": self.ranks,
            "passed": self.passed,
            "verdict": self.verdict,
            "claims": [
                {"name": claim.name, "shown_for": claim.shown_for, "faults": list(claim.faults)}
                for claim in self.claims
            ],
        }

    def section(self) -> Section:
        """Return a row per claim; the last line is the sentence."""
        return Section("Proof of the plan", COLUMNS, list(self._rows()), (self.verdict,))

    def _rows(self) -> Iterator[list[str]]:
        for claim in self.claims:
            yield [claim.name, claim.shown_for, str(len(claim.faults)) if claim.faults else "none"]


EVERY = "every rank"


def prove(plan: LayoutPlan, config: ExperimentConfig) -> PlanProof:
    """Prove a plan, or say what is wrong with it."""
    actions, of_actions = _actions(plan)
    claims = [
        Claim.of("every rank has work", EVERY, unplaced_ranks(plan)),
        Claim.of("ranks and their execution have the same sizes", EVERY, differing_sizes(plan)),
    ]
    if not any(claim.faults for claim in claims):
        groups = broken_groups(plan, actions)
        claims.append(Claim.of("groups are complete and call alike", EVERY, groups))
    if not any(claim.faults for claim in claims):  # the others count on grids that are right
        claims += [
            Claim.of("each sample is computed once", EVERY, uncomputed_samples(plan)),
            Claim.of("groups give equal sizes", EVERY, unequal_sizes(plan, config)),
            Claim.of("what is computed is read", EVERY, _unread(plan, config)),
            Claim.of("bridges bring each sample once", EVERY, broken_bridges(plan)),
            Claim.of(
                "each part of a parameter is held",
                "one rank of each place in a stage",
                unheld_parts(plan, config),
            ),
            Claim.of("each part is reduced and updated once", EVERY, unreduced_parts(plan)),
        ]
    return PlanProof(config.name, plan.world_size, (*claims, *of_actions))


def _unread(plan: LayoutPlan, config: ExperimentConfig) -> Iterator[str]:
    return unread_samples(plan, config.model.reconstructing_names)


def prove_layout(config: ConfigSource) -> PlanProof:
    """Prove the plan of a layout of any number of ranks; nothing is run.

    Args:
        config: a config, the path of one, or preset:NAME.

    Raises:
        ConfigError: the config is wrong.
    """
    checked = checked_config(config)
    return prove(plan_checked(checked), checked)


def _actions(plan: LayoutPlan) -> tuple[Actions, list[Claim]]:
    workers = len(plan.program.graph.workers)
    alike = f"one rank of each of {counted(workers, 'list')} of actions"
    work, order = "each micro-batch is computed and updated once", "no rank waits indefinitely"
    try:
        actions = plan.program.schedule.all_actions()
    except ScheduleError as error:
        return [()] * workers, [Claim(work, alike, (str(error),))]
    return actions, [
        Claim.of(work, alike, wrong_work(plan, actions)),
        Claim.of(order, alike, waits(actions)),
    ]
