"""Places of a whole tensor, found again in its shards."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mimokit.engine.strategies.shard import Cut
from mimokit.planning.strategies.fragments import in_order


def _shards(
    whole: np.ndarray, axis: int, holders: int, parts: int, padding: int
) -> list[np.ndarray]:
    """Cut a tensor as Megatron does: every part of it into as many shares, after padding."""
    widths = [(0, padding if number == axis else 0) for number in range(whole.ndim)]
    padded = np.pad(whole, widths, constant_values=-1)
    shares = [np.split(part, holders, axis) for part in np.split(padded, parts, axis)]
    return [np.concatenate([one[number] for one in shares], axis) for number in range(holders)]


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    axis=st.integers(0, 2),
    holders=st.integers(1, 4),
    parts=st.integers(1, 2),
    padding=st.integers(0, 3),
    data=st.data(),
)
def test_the_places_of_shards_are_those_of_the_whole_tensor(
    shape, axis, holders, parts, padding, data
):
    axis = min(axis, len(shape) - 1)
    shape[axis] *= holders * parts
    padding *= holders * (parts == 1 and axis == 0)  # of a vocabulary
    whole = np.arange(np.prod(shape)).reshape(shape)
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, whole.size - 1)))), np.int64)
    found = []
    for number, shard in enumerate(_shards(whole, axis, holders, parts, padding)):
        cut = Cut(tuple(shape), shard.shape, axis, holders, number, parts)
        places = cut.places(chosen)
        assert (np.diff(places) > 0).all()
        found += shard.reshape(-1)[places].tolist()
    assert sorted(found) == chosen.tolist()


def test_parts_of_a_model_have_one_order() -> None:
    names = ["b.layers.10.w", "b.layers.9.w", "a.x"]
    assert list(in_order(dict.fromkeys(names, (1,)))) == ["a.x", "b.layers.9.w", "b.layers.10.w"]
