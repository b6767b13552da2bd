"""The Pareto front against its definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mimokit.layout_search.pareto import front, lower_edges

POINTS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=40
)


def dominated(one: tuple[int, int, int], others: list[tuple[int, int, int]]) -> bool:
    return any(
        other != one and all(a <= b for a, b in zip(other, one, strict=True)) for other in others
    )


@given(POINTS)
def test_the_front_is_what_nothing_dominates(points: list[tuple[int, int, int]]) -> None:
    columns = [np.array(column, dtype=float) for column in zip(*points, strict=True)]
    found = [points[index] for index in front(*columns)]
    assert sorted(found) == sorted({one for one in points if not dominated(one, points)})


@given(POINTS)
def test_what_is_dropped_early_is_not_on_the_front(points: list[tuple[int, int, int]]) -> None:
    ascending = sorted(points, key=lambda one: one[0])
    columns = [np.array(column, dtype=float) for column in zip(*ascending, strict=True)]
    left = {ascending[index] for index in lower_edges(*columns)}
    assert {one for one in points if not dominated(one, points)} <= left
