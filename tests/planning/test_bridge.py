import pytest
from hypothesis import given
from hypothesis import strategies as st

import mimokit
from mimokit.planning import ColocatedBridge, ModuleRanks
from mimokit.planning.bridges.plan import plan_colocated_bridge
from mimokit.planning.ranks import DIMENSIONS
from tests.planning.layouts import Sizes, layout, sizes
from tests.rows import rows


def bridge(images: Sizes, language: Sizes, base_batch_size: int) -> ColocatedBridge:
    config = layout("colocated", language, base_batch_size, images=images)
    (found,) = mimokit.plan(config).bridges
    return found


def rank_map(module: str, tp: int, cp: int, dp: int) -> ModuleRanks:
    return ModuleRanks(DIMENSIONS, (tp, cp, dp, 1), module=module)


def test_fan_in() -> None:
    # Trap T15: TP2 DP4 to TP4 DP2 on 8 ranks with 8 samples a replica of the language module.
    found = bridge(sizes(2, 4), sizes(4, 2), 8)
    assert (found.source, found.destination) == ("images", "language")
    assert (found.direction, found.ratio) == ("fan_in", 2)
    assert found.gather_groups == ((0, 2), (1, 3), (4, 6), (5, 7))
    starts = {0: 0, 1: 0, 2: 4, 3: 4, 4: 8, 5: 8, 6: 12, 7: 12}
    assert found.pieces == {rank: (start, start + 4) for rank, start in starts.items()}
    assert found.wholes == {rank: (0, 8) if rank < 4 else (8, 16) for rank in starts}
    # Each of 8 ranks receives 4 samples of 16 tokens, 5040 wide, in fp32.
    assert found.bytes_forward == 8 * 4 * 16 * 5040 * 4
    assert found.bytes_backward == 0


def test_equal() -> None:
    found = bridge(sizes(2, 2), sizes(1, 2, cp=2), 3)
    assert (found.direction, found.ratio) == ("equal", 1)
    assert found.gather_groups == ((0,), (1,), (2,), (3,))
    assert found.pieces == found.wholes == {0: (0, 3), 1: (0, 3), 2: (3, 6), 3: (3, 6)}
    assert (found.bytes_forward, found.bytes_backward) == (0, 0)


def test_homogeneous_modules_have_equal_bridges() -> None:
    same = sizes(tp=2, dp=2, pp=2)
    plan = mimokit.plan(layout("homogeneous", same, 3, images=dict(same), audio=dict(same)))
    assert [b.source for b in plan.bridges] == ["images", "audio"]
    assert {b.direction for b in plan.bridges} == {"equal"}
    # Encoders are on the ranks of the first stage alone.
    assert plan.bridges[0].gather_groups == tuple((rank,) for rank in range(4))


def test_modules_on_their_own_ranks_have_other_bridges() -> None:
    config = layout("heterogeneous", sizes(dp=2, offset=2), 1, images=sizes(dp=2))
    plan = mimokit.plan(config)
    assert plan.colocated_bridges == ()
    assert plan.disjoint_bridges == plan.bridges
    assert len(plan.bridges) == 1


@given(
    many=st.sampled_from([1, 2, 4, 8, 16]),
    few=st.sampled_from([1, 2, 4, 8, 16]),
    cp_many=st.sampled_from([1, 2]),
    out=st.booleans(),
)
def test_gathering_by_brute_force(many: int, few: int, cp_many: int, out: bool) -> None:
    """Lay the pieces of every group end to end; each rank must end up with its replica's batch."""
    many, few = max(many, few), min(many, few)
    if cp_many * many > 16 or many == few:
        return
    wide = rank_map("wide", 16 // many // cp_many, cp_many, many)
    narrow = rank_map("narrow", 16 // few, 1, few)
    ends = (narrow, wide) if out else (wide, narrow)
    total = 2 * many
    found = plan_colocated_bridge(*ends, total, 10)
    assert sorted(rank for group in found.gather_groups for rank in group) == list(range(16))
    for group in found.gather_groups:
        places = [wide.coordinates(rank) for rank in group]
        assert len({(place["tp"], place["cp"]) for place in places}) == 1
        replicas = {narrow.coordinates(rank)["dp"] for rank in group}
        assert len(replicas) == 1
        gathered = [sample for p in places for sample in (2 * p["dp"], 2 * p["dp"] + 1)]
        width = total // few
        (replica,) = replicas
        assert gathered == list(range(replica * width, (replica + 1) * width))
        for rank, place in zip(group, places, strict=True):
            assert found.pieces[rank] == (2 * place["dp"], 2 * place["dp"] + 2)
            assert found.wholes[rank] == (gathered[0], gathered[-1] + 1)
    received = 16 * (many // few - 1) * 2 * 10
    moved = (found.bytes_backward, found.bytes_forward)
    assert moved == ((received, 0) if out else (0, received))


@rows(
    "source_dp, destination_dp, samples, reason",
    (2, 4, 6, "does not divide the micro-batch"),
    (4, 2, 6, "6 samples"),
    (3, 2, 6, "divide 3"),
)
def test_what_cannot_be_cut_is_refused(
    source_dp: int, destination_dp: int, samples: int, reason: str
) -> None:
    # Traps T18 and T30: in both directions, before anything moves.
    source = rank_map("images", 12 // source_dp, 1, source_dp)
    destination = rank_map("language", 12 // destination_dp, 1, destination_dp)
    with pytest.raises(ValueError, match=reason):
        plan_colocated_bridge(source, destination, samples, 1)
    with pytest.raises(ValueError, match="same ranks"):
        plan_colocated_bridge(source, rank_map("language", 1, 1, 2), 12, 1)
