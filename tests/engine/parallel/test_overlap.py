"""Gradients that are reduced during the backward pass are those that are reduced after it."""

from contextlib import nullcontext

import mimokit
from tests import seams
from tests.engine.user_loop.test_documents_loop import homogeneous
from tests.invariance import assert_computes_the_same
from tests.layouts import digits_config
from tests.planted import planted, replacing
from tests.whole_runs import LANGUAGE, OVERLAPPED, whole_runs, with_sizes

COUNTS = (1, 3)
"""Micro-batches of two steps. With as many in each Megatron would wait for all of them anyway."""


@replacing
def _small_buckets(original, execution):
    """Let a module have many buckets; they take 40 million numbers."""
    made = original(execution)
    made.bucket_size = 2000
    return made


@whole_runs("overlapped reduction")
def test_an_overlapped_reduction_computes_what_one_process_computes(cluster, run):
    config = run.make()
    with planted(cluster, seams.DDP_CONFIG, _small_buckets, config.model.total_world_size):
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
    with planted(cluster, seams.DDP_CONFIG, _small_buckets, 2):
        return cluster.run(_gradients, mimokit.plan(config), config, world_size=2)[0]


def _difference(found, expected):
    pairs = zip(found, expected, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-3)) for a, b in pairs)


def test_no_sync_holds_reductions_back_until_the_last_micro_batch(cluster):
    (one, expected), (several, found) = _worst(cluster, {}), _worst(cluster, OVERLAPPED)
    assert one == 1
    assert several > 3
    assert _difference(found, expected) < 1e-5
    with planted(cluster, seams.NO_SYNC, lambda original: lambda self: nullcontext(), 2):
        _, early = _worst(cluster, OVERLAPPED)
    assert _difference(early, expected) > 0.1, "micro-batches after the first are not reduced"


def _half_a_module():
    """Overlap the reductions of two parameters, of which one has a gradient; return why not."""
    import torch

    from mimokit.engine.megatron import TransformerConfig
    from mimokit.engine.parallel.data_parallel import wrap_data_parallel
    from mimokit.engine.parallel.grids import create_grids
    from mimokit.planning.execution import ModuleExecution

    plan = mimokit.plan(digits_config())
    _, groups = create_grids(plan)
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
    module = torch.nn.ModuleDict({"used": torch.nn.Linear(4, 4), "other": torch.nn.Linear(4, 4)})
    execution = ModuleExecution(overlap_reduction=True)
    wrapped = wrap_data_parallel(module, config, execution, groups[LANGUAGE])
    wrapped.zero_grad_buffer()
    wrapped.module["used"](torch.ones(1, 4)).sum().backward()
    wrapped.finish_grad_sync()
    try:
        wrapped.zero_grad_buffer()
    except ValueError as error:
        return str(error)
    finally:
        wrapped.release()


def test_a_parameter_without_a_gradient_is_no_silent_wait(cluster):
    (found,) = cluster.run(_half_a_module, world_size=1)
    assert found.startswith("The last backward pass gave 2 of 4 parameters of a bucket a gradient")
