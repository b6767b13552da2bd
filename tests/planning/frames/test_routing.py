"""Rows of patches reach the rank that encodes them, and come back to the rank that holds them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimokit.planning.frames import FrameSettings, route_frames
from mimokit.planning.frames.routing import FrameRoutes, Moves
from tests.rows import rows

MERGE = 2
sides = st.sampled_from([2, 4, 6])
grids = st.lists(st.tuples(st.integers(1, 3), sides, sides), max_size=5)


def as_grid(rows: list) -> np.ndarray:
    """Return rows as [rows, 3]."""
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def exchange(parts: list[tuple[Moves, np.ndarray]]) -> list[np.ndarray]:
    """Do what all_to_all_single does to the rows of every rank."""
    cut = [np.split(rows, np.cumsum(moves.splits)[:-1]) for moves, rows in parts]
    return [np.concatenate([pieces[rank] for pieces in cut]) for rank in range(len(parts))]


def there_and_back(routes: FrameRoutes, patches: list[np.ndarray]) -> list[np.ndarray]:
    """Return what every rank gets back if an encoder returns its input."""
    ranks = range(len(patches))
    sent = [
        (moves, patches[rank][routes.rows(moves.frames, routes.own(rank))])
        for rank in ranks
        for moves in (routes.sends(rank),)
    ]
    encoded = exchange(sent)
    for rank in ranks:
        assert sum(routes.encodes(rank).splits) == len(encoded[rank])
    found = exchange([(routes.encodes(rank), encoded[rank]) for rank in ranks])
    return [found[rank][routes.rows(routes.own(rank), routes.sends(rank).frames)] for rank in ranks]


@given(st.lists(grids, min_size=1, max_size=6), st.booleans())
def test_every_holder_gets_every_row_back(batches: list, split_time: bool) -> None:
    batches = [as_grid(rows) for rows in batches]
    begins = np.cumsum([0, *[int(rows.prod(axis=1).sum()) for rows in batches]])
    patches = [np.arange(begins[rank], begins[rank + 1]) for rank in range(len(batches))]
    routes = route_frames(batches, FrameSettings(MERGE, split_time=split_time))
    for found, own in zip(there_and_back(routes, patches), patches, strict=True):
        assert found.tolist() == own.tolist()
    encoded = np.concatenate([routes.encodes(rank).frames for rank in range(len(batches))])
    assert sorted(encoded.tolist()) == list(range(len(routes.patches))), "each frame once"


def test_a_long_video_is_shared() -> None:
    video = [as_grid([(8, 4, 4)]), as_grid([])]
    shared = route_frames(video, FrameSettings(MERGE))
    assert shared.plan.load_per_rank == (64, 64)
    assert shared.patches_between().tolist() == [[64, 64], [0, 0]]
    whole = route_frames(video, FrameSettings(MERGE, split_time=False))
    assert sorted(whole.plan.load_per_rank) == [0, 128]


@rows(
    "grid, split_time, sentence",
    ([(1, 2, 3)], True, "On rank 1 of the group, row 0 .* a frame has 6 patches, .* of 4"),
    ([(1, 2, 2), (2, 1, 2)], True, r"row 1 of the grid is \[2, 1, 2\]"),
    ([(1, 0, 2)], True, r"row 0 of the grid is \[1, 0, 2\]; frames, rows and columns are >= 1"),
    ([(1, 1, 2)], False, "the row has 2 patches, which are no multiple of 4"),
)
def test_grids_that_cannot_be_dispatched(grid: list, split_time: bool, sentence: str) -> None:
    settings = FrameSettings(MERGE, split_time=split_time)
    with pytest.raises(ValueError, match=sentence):
        route_frames([as_grid([]), as_grid(grid)], settings)
    if not split_time:
        route_frames([as_grid([(2, 1, 2)])], settings)


def test_no_token_is_made_of_no_patches() -> None:
    with pytest.raises(ValueError, match="merge_size is 0; it must be at least 1"):
        route_frames([as_grid([(1, 2, 2)])], FrameSettings(0))
