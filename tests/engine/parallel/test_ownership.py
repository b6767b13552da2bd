"""Every token and every entry is counted once, and every piece written once, over all ranks."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mimokit.engine.parallel.data_parallel import Ownership
from mimokit.engine.parallel.grids import process_groups
from mimokit.planning.ranks import DIMENSIONS, EXPERT_DIMENSIONS, RankGrid
from tests.rows import rows

LAYOUTS = [
    # (tp, cp, dp, pp), (expt_tp, ep, expt_dp, pp)
    ((2, 1, 2, 1), (1, 1, 4, 1)),
    ((2, 2, 2, 1), (1, 2, 4, 1)),
    ((1, 4, 1, 2), (2, 2, 1, 2)),
    ((2, 2, 1, 3), (2, 1, 2, 3)),
    ((4, 1, 3, 2), (2, 3, 2, 2)),
    ((1, 2, 3, 1), (1, 6, 1, 1)),
]


@dataclass(frozen=True)
class Group:
    """The ranks of a process group, on one of them."""

    ranks: tuple[int, ...]
    this: int

    def rank(self) -> int:
        return self.ranks.index(self.this)


@dataclass(frozen=True)
class Groups:
    """A grid on one of its ranks."""

    grid: RankGrid
    this: int

    def get_pg(self, dimensions: list[str]) -> Group:
        return Group(self.grid.group_of(self.this, *dimensions), self.this)


@dataclass(frozen=True)
class Rank:
    """A rank of a module.

    Attributes:
        at: its coordinates in the grid of the module and in the expert view.
    """

    number: int
    at: dict[str, int]
    ownership: Ownership
    stages: int


def ranks_of(shape: tuple[int, ...], experts: tuple[int, ...]) -> list[Rank]:
    grid, view = RankGrid(DIMENSIONS, shape, 3), RankGrid(EXPERT_DIMENSIONS, experts, 3)
    return [
        Rank(
            number,
            {**view.coordinates(number), **grid.coordinates(number)},
            Ownership(process_groups(Groups(grid, number), Groups(view, number), None)),
            shape[-1],
        )
        for number in grid.ranks
    ]


def parameter(**marks: bool) -> Any:
    return SimpleNamespace(**marks)


def held(rank: Rank) -> Iterator[tuple[str, Any, Hashable, Hashable]]:
    """Yield name, parameter, the piece of it that a rank has, and the file that it belongs to."""
    at, stage = rank.at, rank.at["pp"]
    place, expert_place = (stage, at["tp"]), (stage, at["ep"], at["expt_tp"])
    yield "matrix", parameter(tensor_model_parallel=True), (stage, at["tp"]), place
    yield "norm", parameter(), stage, place
    expert = {"allreduce": False}
    cut = parameter(tensor_model_parallel=True, **expert)
    yield "expert matrix", cut, (stage, at["ep"], at["expt_tp"]), expert_place
    yield "expert bias", parameter(**expert), (stage, at["ep"]), expert_place
    if stage in (0, rank.stages - 1):
        tied = parameter(tensor_model_parallel=True, shared=stage > 0)
        yield "tied embedding", tied, at["tp"], place


def counted(ranks: list[Rank], counts: Callable[[Rank, Any], bool]) -> Counter[Hashable]:
    """Return how often each piece is counted, also where it is not."""
    pieces: Counter[Hashable] = Counter()
    for rank in ranks:
        for name, one, piece, _ in held(rank):
            pieces[name, piece] += counts(rank, one)
    return pieces


@rows("layout", *LAYOUTS)
def test_over_all_ranks_each_is_counted_and_written_once(layout: Any) -> None:
    ranks = ranks_of(*layout)
    pieces = counted(ranks, lambda rank, one: rank.ownership.owns(one))
    assert set(pieces.values()) == {1}, "every entry is in the norm once"
    tokens: Counter[Hashable] = Counter()
    written: Counter[Hashable] = Counter()
    holders: dict[Hashable, set[int]] = {}
    for rank in ranks:
        if rank.at["pp"] == rank.stages - 1:
            # A context parallel rank has the tokens of its part of the samples of its replica.
            tokens[rank.at["dp"], rank.at["cp"]] += rank.ownership.counts_tokens()
        for name, one, _, place in held(rank):
            written[name, place] += rank.ownership.writes(one)
            holders.setdefault((name, place), set()).add(rank.number)
    assert set(tokens.values()) == {1}
    assert set(written.values()) == {1}
    for rank in ranks:
        for name, one, _, place in held(rank):
            group: Any = rank.ownership.reduce_group(one)
            assert set(group.ranks) == holders[name, place], f"{name}: who has the same piece"


def test_the_check_catches_replicas_over_data_parallel_ranks_alone() -> None:
    """What the norm asked before: context parallel replicas count twice, experts wrongly."""

    def of_data_parallel_replica(rank: Rank, one: Any) -> bool:
        cut = getattr(one, "tensor_model_parallel", False)
        copy = getattr(one, "shared", False)
        return rank.at["dp"] == 0 and (cut or rank.at["tp"] == 0) and not copy

    pieces = counted(ranks_of((2, 2, 2, 1), (1, 2, 4, 1)), of_data_parallel_replica)
    assert pieces["norm", 0] == 2
    assert [pieces["expert bias", (0, number)] for number in (0, 1)] == [2, 0]
    assert [pieces["expert matrix", (0, number, 0)] for number in (0, 1)] == [2, 2]
