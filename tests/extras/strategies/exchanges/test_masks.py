"""Masks and groups that every node draws alike."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.extras.strategies.exchanges import Grouping, Masks, fragments_of
from mimokit.extras.strategies.exchanges.sizes import demo_blocks, sparse_bytes
from tests.rows import rows

SELECTORS = st.sampled_from(["shuffled_sequential", "partitioned"])


@settings(max_examples=100)
@given(SELECTORS, st.floats(0.02, 1), st.integers(0, 200), st.integers(0, 3), st.integers(0, 3))
def test_a_cycle_takes_every_entry_exactly_once(
    selector: str, p: float, entries: int, seed: int, cycle: int
) -> None:
    masks = Masks(selector, p, seed)  # type: ignore[arg-type]
    length = masks.cycle(entries)
    taken = [masks.indices("w", entries, cycle * length + i) for i in range(length)]
    assert sorted(np.concatenate(taken).tolist()) == list(range(entries))
    for number, indices in enumerate(taken):
        assert len(indices) == masks.counts(np.array([entries]), number)[0]


def test_only_partitions_are_drawn_anew() -> None:
    for selector, same in (("shuffled_sequential", True), ("partitioned", False)):
        masks = Masks(selector, 0.25, 1)  # type: ignore[arg-type]
        first, second = (masks.indices("w", 1000, number) for number in (1, 5))
        assert np.array_equal(first, second) is same


@rows("p", 0.001, 0.3, 0.99)
def test_a_random_mask_takes_each_entry_with_probability_p(p: float) -> None:
    masks, entries, draws = Masks("random", p, 7), 500, 400
    hits = np.zeros(entries)
    for number in range(draws):
        indices = masks.indices("w", entries, number)
        assert (np.diff(indices) > 0).all()
        hits[indices] += 1
    deviation = math.sqrt(draws * p * (1 - p))
    assert abs(hits.mean() - draws * p) < 4 * deviation / math.sqrt(entries)
    halves = hits[: entries // 2].mean() - hits[entries // 2 :].mean()
    assert abs(halves) < 4 * deviation * math.sqrt(4 / entries)
    assert hits.var() == pytest.approx(deviation**2, rel=0.35)


def test_p_of_one_takes_everything_and_names_have_masks_of_their_own() -> None:
    assert Masks("random", 1.0, 3).indices("w", 9, 4).tolist() == list(range(9))
    masks = Masks("random", 0.1, 3)
    assert masks.indices("a", 1000, 0).tolist() != masks.indices("b", 1000, 0).tolist()


@settings(max_examples=60)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 3000))
def test_groups_are_as_large_as_asked_except_the_last(nodes: int, size: int, number: int) -> None:
    grouping = Grouping(nodes, size, seed=2)
    sizes = [len(group) for group in grouping.groups(number)]
    assert sizes[:-1] == [min(size, nodes)] * (len(sizes) - 1)
    assert (sizes[0], sizes[-1]) == (grouping.largest(), grouping.smallest())


def test_every_pair_of_nodes_meets() -> None:
    pairs = {pair for number in range(200) for pair in Grouping(6, 2, 0).groups(number)}
    assert len(pairs) == 15


def test_layers_are_strided_over_fragments() -> None:
    shapes = {f"blocks.{layer}.{part}": (4, 4) for layer in range(5) for part in "ab"}
    found = fragments_of({"embed": (100, 4), **shapes, "norm": (4,)}, 2)
    assert found[0] == (*(f"blocks.{layer}.{part}" for layer in (0, 2, 4) for part in "ab"), "norm")
    assert found[1][0] == "embed"


@settings(max_examples=60)
@given(st.lists(st.integers(1, 70), max_size=4), st.integers(1, 32))
def test_blocks_of_demo_cover_a_tensor(shape: list[int], chunk: int) -> None:
    blocks, sides = demo_blocks(shape, chunk)
    assert blocks * math.prod(sides) == math.prod(shape)
    assert max(sides) <= chunk


def test_the_last_chunk_may_be_shorter() -> None:
    assert sparse_bytes(4096, 4096, 0.02, 2) == 82 * 2 + 21 + 4
    assert sparse_bytes(4100, 4096, 0.02, 2) == 82 * 2 + 21 + 4 + (2 + 1 + 4)
    assert sparse_bytes(0, 4096, 0.02, 2) == 0
