"""The blocks of all ranks are the whole tensor, each entry once, whatever cuts it."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mimokit.architecture.tensor_cut import ShardPlace, TensorCut
from mimokit.engine.checkpoints.blocks import blocks_of, rectangles_of

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@given(SHAPES, st.data())
def test_a_range_of_entries_is_rectangles_in_its_order(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    whole = torch.arange(math.prod(shape)).view(shape)
    start = data.draw(st.integers(0, whole.numel()))
    stop = data.draw(st.integers(start, whole.numel()))
    found = [
        whole[tuple(slice(a, a + n) for a, n in zip(offsets, lengths, strict=True))].flatten()
        for offsets, lengths in rectangles_of(shape, start, stop)
    ]
    assert torch.cat([torch.empty(0, dtype=torch.int64), *found]).tolist() == [*range(start, stop)]


CUTS = [
    (TensorCut((6, 5)), 2),
    (TensorCut((12, 5), 0), 3),
    (TensorCut((12, 5), 0, parts=2), 3),
    (TensorCut((4, 12), 1), 2),
    (TensorCut((12,), 0, parts=2), 2),
    (TensorCut((10, 3), 0, multiple=4), 2),
    (TensorCut((5, 3, 3)), 1),
    (TensorCut(()), 2),
]


@pytest.mark.parametrize("sharded", [1, 3])
@pytest.mark.parametrize(("cut", "ranks"), CUTS)
def test_the_blocks_of_all_ranks_are_the_whole(cut: TensorCut, ranks: int, sharded: int) -> None:
    """`sharded` ranks have ranges of the flattened shard each, of uneven lengths."""
    whole = torch.arange(math.prod(cut.whole), dtype=torch.float32).view(cut.whole)
    joined = torch.full(cut.whole or (1,), -1.0)
    places = [ShardPlace(ranks, rank) for rank in range(ranks)]
    for shard in [cut.at(place) for place in places if cut.at(place).is_written]:
        local = torch.from_numpy(shard.of(whole.numpy(), padding=-2.0).copy())
        size = local.numel()
        bounds = [size * number**2 // sharded**2 for number in range(sharded + 1)]
        for start, stop in itertools.pairwise(bounds):
            entries = None if sharded == 1 else (start, stop)
            values = local if entries is None else local.flatten()[start:stop]
            for block in blocks_of(values, shard, entries):
                lengths = zip(block.offsets, block.tensor.shape, strict=True)
                place = tuple(slice(first, first + length) for first, length in lengths)
                assert (joined[place] == -1).all(), "an entry twice"
                joined[place] = block.tensor
    assert torch.equal(joined, whole.view(joined.shape))


def test_a_lost_cut_would_be_seen() -> None:
    """Gate above up read as one matrix gives other rows."""
    cut = TensorCut((8, 1), 0, parts=2)
    halves = [cut.at(ShardPlace(2, rank)) for rank in range(2)]
    wrong = [replace(cut, parts=1).at(ShardPlace(2, rank)) for rank in range(2)]
    rows = [[block.offsets for block in blocks_of(torch.zeros(4, 1), one, None)] for one in halves]
    assert rows == [[(0, 0), (4, 0)], [(2, 0), (6, 0)]]
    assert [[b.offsets for b in blocks_of(torch.zeros(4, 1), one, None)] for one in wrong] != rows
