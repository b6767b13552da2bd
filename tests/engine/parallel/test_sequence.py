"""Sequence parallelism computes what one process computes, and the check of it catches faults."""

from __future__ import annotations

from tests.invariance import assert_computes_the_same
from tests.whole_runs import whole_runs


@whole_runs("sequence parallelism")
def test_slices_of_a_sequence_compute_what_one_process_computes(cluster, run):
    assert_computes_the_same(cluster, run.make())
