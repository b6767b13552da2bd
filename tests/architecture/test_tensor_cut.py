"""Shards of tensors, against a tensor that is cut as Megatron does it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimokit.architecture.tensor_cut import ShardPlace, TensorCut, TensorShard
from mimokit.config import ModuleParallelismConfig
from mimokit.planning.ranks import ModuleRanks

PADDING = -1


@st.composite
def cuts(draw: st.DrawFn) -> tuple[TensorCut, int]:
    """Draw a cut that so many ranks can share: in parts, padded, or not at all."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    ranks, parts = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    dimension = draw(st.none() | st.integers(0, len(shape) - 1))
    if dimension is None:
        return TensorCut(tuple(shape)), ranks
    if draw(st.booleans()):
        multiple = draw(st.integers(1, 3))
        return TensorCut(tuple(shape), dimension, multiple=multiple), ranks
    shape[dimension] *= ranks * parts
    return TensorCut(tuple(shape), dimension, parts), ranks


def _as_megatron_cuts(whole: np.ndarray, cut: TensorCut, ranks: int) -> list[np.ndarray]:
    """Cut a tensor: every part of it into as many shares, after padding."""
    if cut.dimension is None:
        return [whole] * ranks
    missing = -whole.shape[cut.dimension] % ((cut.multiple or 1) * ranks)
    widths = [(0, missing * (number == cut.dimension)) for number in range(whole.ndim)]
    padded = np.pad(whole, widths, constant_values=PADDING)
    parts = np.split(padded, cut.parts, cut.dimension)
    shares = [np.split(part, ranks, cut.dimension) for part in parts]
    return [np.concatenate([one[rank] for one in shares], cut.dimension) for rank in range(ranks)]


@given(drawn=cuts(), data=st.data())
def test_shards_are_cut_as_megatron_cuts_them(drawn: tuple[TensorCut, int], data: st.DataObject):
    cut, ranks = drawn
    whole = np.arange(np.prod(cut.whole)).reshape(cut.whole)
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, whole.size - 1)))), np.int64)
    expected = _as_megatron_cuts(whole, cut, ranks)
    shards = cut.shards(ranks)
    assert len(shards) == (1 if cut.dimension is None else ranks)
    for shard, wanted in zip(shards, expected, strict=False):
        assert shard.shape == wanted.shape
        assert np.array_equal(shard.of(whole, PADDING), wanted)
        assert shard.entries == (wanted != PADDING).sum()
        places = shard.places(chosen)
        assert (np.diff(places) > 0).all()
        assert wanted.reshape(-1)[places].tolist() == [one for one in chosen if one in wanted]


def _count(counts: np.ndarray, shard: TensorShard) -> None:
    """Count the entries of a shard, which must not overlap in it."""
    local = np.zeros(shard.shape, int)
    for block in shard.rectangles:
        for offsets, target in ((block.whole, counts), (block.local, local)):
            ends = np.add(offsets, block.shape)
            target[tuple(map(slice, offsets, ends))] += 1
    assert local.max(initial=0) <= 1


def _check_tiling(cut: TensorCut, ranks: ModuleRanks) -> None:
    """Check that one rank writes each entry, and how many ranks hold it."""
    held, written = np.zeros(cut.whole, int), np.zeros(cut.whole, int)
    shards = [cut.at(ranks.shard_place(rank)) for rank in ranks.stage(0)]
    for shard in shards:
        _count(held, shard)
        if shard.is_written:
            _count(written, shard)
    assert (written == 1).all()
    groups = ranks.tensor_parallel, ranks.ranks_per_stage
    if cut.expert is not None:
        groups = 1, ranks.ranks_per_stage // ranks.expert_parallel
    assert (held == groups[1] // (1 if cut.dimension is None else groups[0])).all()


@given(drawn=cuts(), replicas=st.integers(1, 2), context=st.integers(1, 2), data=st.data())
def test_ranks_tile_a_tensor_and_one_writes_each_entry(
    drawn: tuple[TensorCut, int], replicas: int, context: int, data: st.DataObject
):
    cut, tensor = drawn
    ranks_of_stage = tensor * context * replicas
    spread = data.draw(
        st.sampled_from([one for one in range(1, ranks_of_stage + 1) if ranks_of_stage % one == 0])
    )
    sizes = ModuleParallelismConfig(
        tensor_parallel=tensor, context_parallel=context, data_parallel=replicas
    )
    ranks = replace(ModuleRanks.of("module", sizes), expert_parallel=spread)
    _check_tiling(cut, ranks)
    experts = spread * data.draw(st.integers(1, 3))
    for expert in range(experts):
        _check_tiling(replace(cut, expert=expert, experts=experts), ranks)


def test_an_expert_is_cut_over_its_own_ranks() -> None:
    """4 experts on 2 ranks, each cut in 2, whatever the tensor parallel size is."""
    cut = TensorCut((6, 2), 0, 1, expert=2, experts=4)
    found = []
    for expert_rank, tensor_rank in itertools.product(range(2), range(2)):
        place = ShardPlace(4, 3, 0, 2, expert_rank, 2, tensor_rank)
        shard = cut.at(place)
        blocks = [(one.whole, one.local, one.shape) for one in shard.rectangles]
        found.append((shard.is_held, shard.is_written, blocks))
    assert found == [
        (False, False, []),
        (False, False, []),
        (True, True, [((0, 0), (0, 0), (3, 2))]),
        (True, True, [((3, 0), (0, 0), (3, 2))]),
    ]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda start, stop, local: (start, stop - 1, local), "a row that no rank holds"),
        (lambda start, stop, local: (max(0, start - 1), stop - (start > 0), local), "shifted"),
    ],
    ids=["lost", "shifted"],
)
def test_blocks_that_do_not_tile_are_seen(wrong, why, monkeypatch) -> None:
    right = TensorShard._spans
    monkeypatch.setattr(
        TensorShard, "_spans", lambda shard, dimension: [wrong(*one) for one in right(shard, 0)]
    )
    sizes = ModuleParallelismConfig(tensor_parallel=2, data_parallel=1)
    with pytest.raises(AssertionError):
        _check_tiling(TensorCut((8, 3), 0, 2), ModuleRanks.of("module", sizes))


def test_ranks_that_do_not_divide_a_tensor_are_refused() -> None:
    cut = TensorCut((12, 2), 0, 2)
    assert (cut.divides(3), cut.divides(4)) == (True, False)
    with pytest.raises(ValueError, match="4 ranks cannot share dimension 0 in 2 parts of a tensor"):
        cut.padded(4)
