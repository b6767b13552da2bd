"""What must be alike between ranks, different, or as planned: random states and collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.tensor_collectives import CollectiveSpan
from mimokit.samples import HealthSample

Planned = Mapping[int, Mapping[str, CollectiveSpan]]
"""Rank -> module -> planned collectives of its tensor parallel group; without what is unknown."""


@dataclass(frozen=True)
class Fault:
    """Something wrong on a rank.

    Attributes:
        rank: that differs from a lower one, or from its plan.
        sentence: what is wrong.
    """

    rank: int
    sentence: str


def rank_faults(
    ranks: Sequence[HealthSample], plan: LayoutPlan, planned: Planned | None
) -> tuple[Fault, ...]:
    """Return what is wrong with the random states and the collectives of ranks.

    Args:
        ranks: what each says after one iteration.
        plan: of the run.
        planned: collectives; None: not known. The ranks that it lacks have a module of the user,
            whose replicas may draw more or fewer numbers.
    """
    mine = [one for one in ranks if planned is None or one.rank in planned]
    return (
        *_of_generators(ranks, plan),
        *_of_regions(ranks, plan),
        *_of_replicas(mine, plan),
        *_of_groups(ranks, planned or {}),
    )


def _of_generators(ranks: Sequence[HealthSample], plan: LayoutPlan) -> Iterator[Fault]:
    """Yield tensor parallel ranks whose generators have different states."""
    seen = set()
    for _, one, first in _pairs(ranks, plan, lambda module: module.groups("tp")):
        pair = first.rank, one.rank
        if one.random_state == first.random_state or pair in seen:
            continue
        seen.add(pair)
        yield Fault(
            one.rank,
            f"Ranks {first.rank} and {one.rank} have different random states after iteration "
            f"{one.iteration}, which must be alike in a tensor parallel group.",
        )


def _of_regions(ranks: Sequence[HealthSample], plan: LayoutPlan) -> Iterator[Fault]:
    """Yield tensor parallel ranks with the same random state inside their regions."""
    for module, one, first in _pairs(ranks, plan, lambda module: module.groups("tp")):
        state = one.states_inside.get(module)
        if state is not None and state == first.states_inside.get(module):
            yield Fault(
                one.rank,
                f"Ranks {first.rank} and {one.rank} have the same random state inside the tensor "
                f"parallel regions of {module} after iteration {one.iteration}, where they must "
                "differ.",
            )


def _of_replicas(ranks: Sequence[HealthSample], plan: LayoutPlan) -> Iterator[Fault]:
    """Yield replicas of a module with different random states inside its regions."""
    for module, one, first in _pairs(ranks, plan, lambda module: module.groups("cp", "dp")):
        if one.states_inside.get(module) != first.states_inside.get(module):
            yield Fault(
                one.rank,
                f"Ranks {first.rank} and {one.rank}, which are replicas, have different random "
                f"states inside the tensor parallel regions of {module} after iteration "
                f"{one.iteration}.",
            )


def _of_groups(ranks: Sequence[HealthSample], planned: Planned) -> Iterator[Fault]:
    """Yield ranks that had other collectives than are planned."""
    for one in ranks:
        for module, span in planned.get(one.rank, {}).items():
            counted = one.collectives.get(module)
            if counted is not None and counted not in span:
                yield Fault(
                    one.rank,
                    f"Rank {one.rank} had {counted:,} collectives in the tensor parallel group of "
                    f"{module} in iteration {one.iteration}, and {span} are planned.",
                )


def _pairs(
    ranks: Sequence[HealthSample],
    plan: LayoutPlan,
    groups: Callable[[ModuleRanks], Sequence[Sequence[int]]],
) -> Iterator[tuple[str, HealthSample, HealthSample]]:
    """Yield (module, rank, first rank of its group), for groups of every replica of the layout."""
    known = {one.rank: one for one in ranks}
    layout = plan.of_replica(0)
    for start in range(0, plan.world_size, layout.world_size):
        for name, module in layout.modules.items():
            for group in groups(module):
                said = [known[start + rank] for rank in group if start + rank in known]
                for one in said[1:]:
                    yield name, one, said[0]
