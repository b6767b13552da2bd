"""What is wrong with ranks: bits, entries, random states and collectives."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.tensor_collectives import CollectiveSpan
from mimokit.samples import HealthSample
from mimokit.units import counted

Planned = Mapping[int, Mapping[str, CollectiveSpan]]
"""Rank -> module -> planned collectives of its tensor parallel group; without what is unknown."""


@dataclass(frozen=True)
class RankDifference:
    """A rank with other bits than a lower one; `ranks` are the lower one and it."""

    ranks: tuple[int, int]
    names: tuple[str, ...]

    def sentence(self, when: str) -> str:
        """Return what differs."""
        lower, rank = self.ranks
        return (
            f"Ranks {lower} and {rank} have different bits of {_named(self.names)}{when}, which "
            "must be alike."
        )


def rank_differences(
    digests: Mapping[int, Mapping[str, int]], together: int
) -> Iterator[RankDifference]:
    """Yield the ranks that differ from the first that has a tensor, in its group.

    Args:
        digests: rank -> tensor -> digest of its bits, ranks ascending.
    """
    first: dict[tuple[int, str], int] = {}
    for rank, of_rank in digests.items():
        names: dict[int, list[str]] = {}
        for name, digest in of_rank.items():
            lower = first.setdefault((rank // together, name), rank)
            if digests[lower][name] != digest:
                names.setdefault(lower, []).append(name)
        for lower, different in names.items():
            yield RankDifference((lower, rank), tuple(different))


def not_finite(ranks: Sequence[HealthSample], when: str) -> Iterator[str]:
    """Yield a sentence for each rank with tensors that have an entry that is not finite."""
    for sample in ranks:
        if sample.not_finite:
            names = _named(sample.not_finite)
            yield f"Rank {sample.rank} has an entry that is not finite in {names}{when}."


def _named(names: Sequence[str]) -> str:
    others = len(names) - 1
    return names[0] + (f" and {counted(others, 'other')}" if others else "")


def rank_faults(
    ranks: Sequence[HealthSample], plan: LayoutPlan, planned: Planned | None
) -> tuple[str, ...]:
    """Return what is wrong with the random states and the collectives of ranks, in sentences.

    Args:
        planned: collectives; None: not known. The ranks that it lacks have a module of the user,
            whose replicas may draw more or fewer numbers.
    """
    comparable = [sample for sample in ranks if planned is None or sample.rank in planned]
    return (
        *_of_generators(ranks, plan),
        *_of_regions(ranks, plan),
        *_of_replicas(comparable, plan),
        *_of_groups(ranks, planned or {}),
    )


def _of_generators(ranks: Sequence[HealthSample], plan: LayoutPlan) -> Iterator[str]:
    layout, seen = plan.of_replica(0), set()
    for _, sample, first in _pairs(ranks, plan, lambda module: module.groups("tp")):
        pair = first.rank, sample.rank
        ours, theirs = (layout.program.stages_of(rank % layout.world_size) for rank in pair)
        if sample.random_state == first.random_state or pair in seen or ours != theirs:
            continue
        seen.add(pair)
        yield (
            f"Ranks {first.rank} and {sample.rank} have different random states after iteration "
            f"{sample.iteration}, which must be alike in a tensor parallel group."
        )


def _of_regions(ranks: Sequence[HealthSample], plan: LayoutPlan) -> Iterator[str]:
    for module, sample, first in _pairs(ranks, plan, lambda module: module.groups("tp")):
        state = sample.states_inside.get(module)
        if state is not None and state == first.states_inside.get(module):
            yield (
                f"Ranks {first.rank} and {sample.rank} have the same random state inside the "
                f"tensor parallel regions of {module} after iteration {sample.iteration}, where "
                "they must differ."
            )


def _of_replicas(ranks: Sequence[HealthSample], plan: LayoutPlan) -> Iterator[str]:
    for module, sample, first in _pairs(ranks, plan, lambda module: module.groups("cp", "dp")):
        if sample.states_inside.get(module) != first.states_inside.get(module):
            yield (
                f"Ranks {first.rank} and {sample.rank}, which are replicas, have different random "
                f"states inside the tensor parallel regions of {module} after iteration "
                f"{sample.iteration}."
            )


def _of_groups(ranks: Sequence[HealthSample], planned: Planned) -> Iterator[str]:
    for sample in ranks:
        for module, span in planned.get(sample.rank, {}).items():
            count = sample.collectives.get(module)
            if count is not None and count not in span:
                yield (
                    f"Rank {sample.rank} had {count:,} collectives in the tensor parallel group of "
                    f"{module} in iteration {sample.iteration}, and {span} are planned."
                )


def _pairs(
    ranks: Sequence[HealthSample],
    plan: LayoutPlan,
    groups: Callable[[ModuleRanks], Sequence[Sequence[int]]],
) -> Iterator[tuple[str, HealthSample, HealthSample]]:
    by_rank = {sample.rank: sample for sample in ranks}
    layout = plan.of_replica(0)
    for start in range(0, plan.world_size, layout.world_size):
        for name, module in layout.modules.items():
            for group in groups(module):
                samples = [by_rank[start + rank] for rank in group if start + rank in by_rank]
                for sample in samples[1:]:
                    yield name, sample, samples[0]
