"""Runs whose replicas share images compute what one process computes, in all three modes."""

import pytest

from mimokit.experiment import verify
from tests import seams
from tests.invariance import STEPS, oracle_of
from tests.planted import planted
from tests.whole_runs import any_size_on_stages, frames_by_fan_in, samples_in_another_order


def _backwards(original):
    return lambda *given: original(*given).flip(0)


@pytest.mark.parametrize(("make", "ranks"), [(frames_by_fan_in, 4), (any_size_on_stages, 6)])
def test_verification_sees_rows_in_a_wrong_order(cluster, make, ranks):
    config = make()
    oracle = oracle_of(cluster, config)
    with planted(cluster, seams.OWN_ORDER_OF_FRAMES, _backwards, ranks):
        report = verify(cluster, config, steps=STEPS, oracle=oracle)
    assert not report.passed


def _first_sample_twice(original):
    return lambda works: (original(works)[1], *original(works)[1:])


def test_verification_sees_a_sample_that_is_read_twice(cluster):
    config = samples_in_another_order()
    oracle = oracle_of(cluster, config)
    with planted(cluster, seams.ORDER_SAMPLES, _first_sample_twice, world_size=4):
        report = verify(cluster, config, steps=STEPS, oracle=oracle)
    assert not report.passed
