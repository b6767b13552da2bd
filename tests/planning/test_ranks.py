"""Rank maps equal those of megatron-core's own grid."""

import pickle
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.config import ModuleParallelismConfig
from mimokit.planning import ModuleRanks, RankGrid
from mimokit.planning.ranks import DIMENSIONS
from tests.rows import rows

ALL_SETS = [chosen for n in range(1, 5) for chosen in combinations(DIMENSIONS, n)]
SIZE = st.integers(1, 4)


@pytest.fixture(scope="module")
def grid_of() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", str(2**20))
        from megatron.core.hyper_comm_grid import HyperCommGrid

        yield HyperCommGrid


def rank_map(tp: int, cp: int, dp: int, pp: int, offset: int = 0, ep: int = 1) -> ModuleRanks:
    return ModuleRanks(DIMENSIONS, (tp, cp, dp, pp), offset, module="images", expert_parallel=ep)


@settings(max_examples=60)
@given(shape=st.tuples(SIZE, SIZE, SIZE, SIZE), offset=st.integers(0, 50))
def test_groups_equal_megatrons(
    grid_of: object, shape: tuple[int, int, int, int], offset: int
) -> None:
    grid = grid_of(list(shape), list(DIMENSIONS), rank_offset=offset)
    ours = rank_map(*shape, offset=offset)
    for dimensions in ALL_SETS:
        theirs = tuple(map(tuple, grid.get_rank_enum(list(dimensions))))
        assert ours.groups(*dimensions) == theirs
        assert ours.groups(*reversed(dimensions)) == theirs


@settings(max_examples=60)
@given(
    shape=st.lists(SIZE, min_size=1, max_size=5).map(tuple),
    offset=st.integers(0, 9),
    chooser=st.data(),
)
def test_any_grid_equals_megatrons(
    grid_of: object, shape: tuple[int, ...], offset: int, chooser: st.DataObject
) -> None:
    names = tuple("abcde"[: len(shape)])
    chosen = chooser.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    theirs = grid_of(list(shape), list(names), rank_offset=offset).get_rank_enum(chosen)
    assert RankGrid(names, shape, offset).groups(*chosen) == tuple(map(tuple, theirs))


@given(shape=st.tuples(SIZE, SIZE, SIZE, SIZE), offset=st.integers(0, 50), chooser=st.data())
def test_a_rank_finds_itself(
    shape: tuple[int, int, int, int], offset: int, chooser: st.DataObject
) -> None:
    ours = rank_map(*shape, offset=offset)
    rank = chooser.draw(st.sampled_from(ours.ranks))
    coordinates = ours.coordinates(rank)
    assert list(coordinates) == list(DIMENSIONS)
    assert ours.rank(**coordinates) == rank
    dimensions = chooser.draw(st.sampled_from(ALL_SETS))
    group = ours.group_of(rank, *dimensions)
    assert rank in group
    assert group in ours.groups(*dimensions)


def test_replicas_are_inside_stages() -> None:
    # Trap T12: TP4 PP2 DP2 at offset 8 in the order tp-cp-dp-pp.
    ours = rank_map(4, 1, 2, 2, offset=8)
    assert ours.groups("dp")[:2] == ((8, 12), (9, 13))
    assert ours.groups("pp")[:2] == ((8, 16), (9, 17))
    assert ours.stage(0) == range(8, 16)
    assert ours.stage(-1) == range(16, 24)


def test_experts_see_the_same_ranks_again() -> None:
    # Trap T14: TP2 DP4 with EP4.
    view = rank_map(2, 1, 4, 1, ep=4).expert_view()
    assert view.dimensions == ("expt_tp", "ep", "expt_dp", "pp")
    assert view.groups("ep") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert view.groups("expt_dp") == ((0, 4), (1, 5), (2, 6), (3, 7))


@given(shape=st.tuples(SIZE, SIZE, SIZE, SIZE), chooser=st.data())
def test_both_views_have_the_same_pipelines(
    shape: tuple[int, int, int, int], chooser: st.DataObject
) -> None:
    tp, cp, dp, _ = shape
    divisors = [n for n in range(1, tp * cp * dp + 1) if tp * cp * dp % n == 0]
    ours = rank_map(*shape, offset=3, ep=chooser.draw(st.sampled_from(divisors)))
    assert ours.expert_view().groups("pp") == ours.groups("pp")
    assert ours.expert_view().ranks == ours.ranks


@rows("dimensions", (), ("ep",), ("tp", "tp"))
def test_groups_need_dimensions(dimensions: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="tp, cp, dp, pp"):
        rank_map(2, 1, 2, 1).groups(*dimensions)


def test_ranks_and_coordinates_outside() -> None:
    ours = rank_map(2, 1, 2, 1, offset=4)
    for rank in (3, 8):
        with pytest.raises(ValueError, match="ranks 4 to 7"):
            ours.coordinates(rank)
    with pytest.raises(ValueError, match="dp 2"):
        ours.rank(dp=2)


def test_maps_are_values() -> None:
    sizes = ModuleParallelismConfig(tensor_parallel=32, data_parallel=512)
    ours = ModuleRanks.of("images", sizes)
    assert pickle.loads(pickle.dumps(ours)) == ours
    assert len(pickle.dumps(ours)) < 500
    assert hash(ours) == hash(ModuleRanks.of("images", sizes))
    assert ours.size == 16384
