"""Which replica reads which sample, if their sizes are known beforehand."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import mimokit
from mimokit.planning.frames import SampleCosts, SampleSizes, SampleWork, order_samples, slowest
from tests.layouts import digits_config
from tests.rows import rows

sizes = st.lists(st.integers(0, 64), min_size=6, max_size=6)
SIX, EIGHT = (np.array(list(itertools.permutations(range(count)))) for count in (6, 8))
FRAMES = (64, 64, 48, 32, 8, 4, 2, 1)


@given(sizes, sizes, st.sampled_from([(2, 3), (3, 3), (6, 2), (1, 2)]))
@example([1, 3, 0, 0, 4, 5], [0, 1, 1, 1, 2, 0], (2, 3))  # exchanges alone end 11 % above
@settings(max_examples=50)
def test_six_samples_have_the_best_order(encoder, language, replicas) -> None:
    works = [SampleWork.of(encoder, replicas[0]), SampleWork.of(language, replicas[1])]
    order = order_samples(works)
    assert sorted(order) == list(range(6))
    assert slowest(works, order) == pytest.approx(best_of(works, SIX), rel=1e-8)


@rows("replicas", (2, 4), (4, 4), (8, 2), (4, 8))
def test_eight_samples_are_close_to_the_best_order(replicas: tuple[int, int]) -> None:
    random, found = np.random.default_rng(3), []
    for largest in np.resize([4, 12, 65], 30):
        works = [SampleWork.of(random.integers(0, largest, 8), number) for number in replicas]
        found.append(slowest(works, order_samples(works)) / best_of(works, EIGHT))
    assert max(found) <= 1.03
    assert np.mean(found) <= 1.001


def best_of(works: Sequence[SampleWork], orders: np.ndarray) -> float:
    """Return the time of the best of some orders, [orders, samples]."""
    times = [
        work.seconds[orders].reshape(len(orders), work.replicas, -1).sum(axis=2).max(axis=1)
        for work in works
    ]
    return float(sum(times).min())


@rows("samples, replicas", (64, 8), (256, 64))
def test_both_loads_count(samples: int, replicas: int) -> None:
    random = np.random.default_rng(1)
    works = [
        SampleWork.of(random.choice([1, 2, 4, 8, 16, 32, 64], samples), replicas),
        SampleWork.of(random.integers(5, 40, samples), replicas // 2),
    ]
    order = order_samples(works)
    assert sorted(order) == list(range(samples))
    least = sum(max(w.seconds.sum() / w.replicas, w.seconds.max()) for w in works)
    assert slowest(works, range(samples)) > 1.15 * least, "there is something to balance"
    assert slowest(works, order) <= 1.04 * least
    alone = order_samples(works[:1])
    assert slowest(works, order) < slowest(works, alone), "the language model counts as well"


def test_even_samples_stay() -> None:
    works = [SampleWork.of([3] * 8, 4), SampleWork.of([0] * 8, 2)]
    assert order_samples(works) == tuple(range(8))


def test_the_slowest_replica_of_a_layout_has_less_to_do() -> None:
    config = digits_config((1, 4), (1, 4))
    costs = SampleCosts(config, mimokit.plan(config))
    (both,) = costs.works([SampleSizes({"images": count}) for count in FRAMES])
    before, after = (both.per_replica(o) for o in (range(8), order_samples([both])))
    assert after.max() == both.seconds[1] + both.seconds[-2] < before.max()


def test_modules_that_wait_for_each_other_count_separately() -> None:
    stated = [SampleSizes({"images": count}, tokens=count) for count in FRAMES]
    for config, expected in (
        (digits_config((1, 4), (1, 4)), [4]),
        (digits_config((1, 4), (1, 4), patch_type=["vit_frame_parallel"]), [4, 4]),
        (digits_config((1, 4), (2, 2)), [4, 2]),
    ):
        works = SampleCosts(config, mimokit.plan(config)).works(stated)
        assert [work.replicas for work in works] == expected
        assert all(work.seconds[0] > work.seconds[-1] for work in works)


@rows(
    "seconds, replicas, sentence",
    ([1, -1], 2, "Frame 1 has a load of -1"),
    ([1, float("nan")], 2, "Frame 1 has a load of nan"),
    ([1, 2], 0, "replicas is 0"),
    ([1, 2, 3], 2, "2 replicas cannot share 3 samples evenly"),
)
def test_what_is_no_work(seconds: list, replicas: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SampleWork.of(seconds, replicas)


def test_what_cannot_be_ordered() -> None:
    with pytest.raises(ValueError, match="all of the same samples"):
        order_samples([SampleWork.of([1], 1), SampleWork.of([1, 2], 1)])
    with pytest.raises(ValueError, match="at least one"):
        order_samples([])
    config = digits_config((1, 2), (1, 2))
    costs = SampleCosts(config, mimokit.plan(config))
    with pytest.raises(ValueError, match=r"Sample 1 .* states -2 for 'images'"):
        costs.works([SampleSizes({}), SampleSizes({"images": -2})])
    with pytest.raises(ValueError, match="items of 'sounds', which is not an encoder of the model"):
        costs.works([SampleSizes({"sounds": 1}), SampleSizes({})])
