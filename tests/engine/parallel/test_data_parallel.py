"""The wrapper of a module ends with the last reference to it."""

import gc
import weakref

import mimokit
from tests.layouts import digits_config
from tests.whole_runs import LANGUAGE


def _alive_after(releases):
    """Compute a gradient, let the module keep a graph of its own; return what is left of both."""
    import torch

    from mimokit.engine.megatron import TransformerConfig
    from mimokit.engine.parallel.data_parallel import wrap_data_parallel
    from mimokit.engine.parallel.grids import create_grids
    from mimokit.planning.execution import ModuleExecution

    _, groups = create_grids(mimokit.plan(digits_config()))
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
    wrapped = wrap_data_parallel(torch.nn.Linear(4, 4), config, ModuleExecution(), groups[LANGUAGE])
    wrapped.zero_grad_buffer()
    output = wrapped.module(torch.ones(1, 4))
    output.sum().backward()
    gradients = float(wrapped.module.weight.main_grad.sum())
    wrapped.module.last_output = wrapped.module(torch.ones(1, 4))
    if releases:
        wrapped.release()
    references = weakref.ref(wrapped), weakref.ref(wrapped.module.weight)
    del wrapped, output
    gc.collect()
    return gradients, [reference() is not None for reference in references]


def test_a_module_that_keeps_a_graph_does_not_stay(cluster):
    for releases in (True, False):
        (found,) = cluster.run(_alive_after, releases, world_size=1)
        assert found == (16.0, [False, False]), f"release: {releases}"
