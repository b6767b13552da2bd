"""Sequence parallelism computes what one process computes, and the check of it catches faults."""

from __future__ import annotations

from mimokit.experiment import verify
from tests.invariance import assert_computes_the_same, oracle_of
from tests.layouts_multimodal import LANGUAGE
from tests.layouts_networks import network_config
from tests.planted import planted
from tests.whole_runs import learned_positions_in_slices, whole_runs


@whole_runs("sequence parallelism")
def test_slices_of_a_sequence_compute_what_one_process_computes(cluster, run):
    assert_computes_the_same(cluster, run.make())


def _differences(cluster, target, make):
    """Return module -> the largest difference of its first gradients under a planted fault."""
    config = learned_positions_in_slices()
    oracle = oracle_of(cluster, config)
    with planted(cluster, target, make, 2):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert report.loss_differences[0] <= 1e-5, "the forward pass is right"
    assert not report.passed
    return report.gradient_differences[0]


def test_check_catches_gradients_of_one_slice_alone(cluster):
    target = "mimokit.engine.parallel.data_parallel.ModuleDataParallel.sum_gradients_of_slices"
    differ = _differences(cluster, target, lambda original: lambda self: None)
    assert min(differ.values()) > 0.1


def test_check_catches_norms_of_the_heads_of_one_rank_alone(cluster):
    config = network_config("qwen3", "clip", (2, 1, 1), (2, 1, 1))
    oracle = oracle_of(cluster, config)
    target = "mimokit.engine.parallel.sequence.mark_of_slice"
    with planted(cluster, target, lambda original: lambda parameters: None, 2):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert report.gradient_differences[0][LANGUAGE] > 0.1
    assert report.gradient_differences[0]["images"] <= 1e-5


def _summed(original):
    """Plant: the gradients of an encoder's ranks, each whole, are added up."""

    def all_slices(hidden, config, tensor_group):
        from mimokit.engine.megatron import tensor_parallel

        return tensor_parallel.gather_from_sequence_parallel_region(hidden, group=tensor_group)

    return all_slices


def test_check_catches_gradients_that_are_whole_and_summed(cluster):
    differ = _differences(cluster, "mimokit.engine.parallel.context.all_slices", _summed)
    assert differ["images"] > 0.5
