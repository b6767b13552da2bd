"""Gradients that are reduced during the backward pass are those that are reduced after it."""

from __future__ import annotations

from contextlib import nullcontext

import mimokit
from tests.engine.user_loop.test_documents_loop import homogeneous
from tests.invariance import assert_computes_the_same
from tests.layouts import digits_config
from tests.planted import planted
from tests.whole_runs import LANGUAGE, OVERLAPPED, whole_runs, with_sizes

CONFIG = "mimokit.engine.parallel.data_parallel.data_parallel_config"
NO_SYNC = "mimokit.engine.parallel.data_parallel.DistributedDataParallel.no_sync"
COUNTS = (1, 3)
"""Micro-batches of two steps. With as many in each Megatron would wait for all of them anyway."""


def _small_buckets(original):
    """Let a module have many buckets; they take 40 million numbers."""

    def config(execution):
        made = original(execution)
        made.bucket_size = 2000
        return made

    return config


@whole_runs("overlapped reduction")
def test_an_overlapped_reduction_computes_what_one_process_computes(cluster, run):
    config = run.make()
    with planted(cluster, CONFIG, _small_buckets, config.model.total_world_size):
        assert_computes_the_same(cluster, config, run.steps)


def _gradients(plan, config):
    """Run a user's loop; return the buckets of a module and the gradients of its last step."""
    from mimokit import engine

    data = engine.default_data(config)
    model, grids, run = homogeneous(plan, config, data, 1)
    modules = engine.get_module_to_grid_tuple(model, grids)
    found = []
    for count in COUNTS:
        run(num_microbatches=count)
        engine.finalize_model_grads(modules)
        found = [p.main_grad.clone() for module, _ in modules for p in module.parameters()]
        engine.zero_grad_buffer_for_multimodule(modules)
    buckets = len(modules[0][0].bucket_groups)
    model.release()
    return buckets, found


def _worst(cluster, fields):
    config = with_sizes(digits_config((1, 2), (1, 2)), ("images", LANGUAGE), **fields)
    with planted(cluster, CONFIG, _small_buckets, 2):
        return cluster.run(_gradients, mimokit.plan(config), config, world_size=2)[0]


def _difference(found, expected):
    pairs = zip(found, expected, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-3)) for a, b in pairs)


def test_no_sync_holds_reductions_back_until_the_last_micro_batch(cluster):
    (one, expected), (several, found) = _worst(cluster, {}), _worst(cluster, OVERLAPPED)
    assert one == 1
    assert several > 3
    assert _difference(found, expected) < 1e-5
    with planted(cluster, NO_SYNC, lambda original: lambda self: nullcontext(), 2):
        _, early = _worst(cluster, OVERLAPPED)
    assert _difference(early, expected) > 0.1, "micro-batches after the first are not reduced"
