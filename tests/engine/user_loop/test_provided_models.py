"""What `MimoModelProvider.provide` returns, for specs of Megatron's classes and no networks in the
config, trains in the document's loop and in `verify`."""

from functools import partial

import pytest

import mimokit
from mimokit.config import ConfigError, ExperimentConfig, RuntimeConfig
from mimokit.experiment import verify
from tests.engine.user_loop.specs import data_of, layout_of, provider_of, source
from tests.engine.user_loop.test_documents_loop import forward_step

LAYOUTS = {
    "homogeneous": layout_of("homogeneous", (2, 1), (2, 1)),
    "colocated, fan-in": layout_of("colocated", (1, 2), (2, 1)),
    "colocated, fan-out": layout_of("colocated", (2, 1), (1, 2)),
    "heterogeneous": layout_of("heterogeneous", (1, 2), (2, 1)),
}


def experiment_of(layout):
    """Return the experiment of a layout whose networks the specs describe."""
    config = ExperimentConfig(
        model=provider_of(layout).described(),
        data=data_of(layout),
        runtime=RuntimeConfig(num_iterations=2),
        name="specs",
    )
    return config.finalize()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
def test_specs_compute_what_one_process_computes(cluster, layout):
    modules = provider_of(layout).modules
    report = verify(cluster, experiment_of(layout), source, steps=2, modules=modules)
    assert report.passed, report.verdict
    assert report.unproved == {}


def _loop(layout, iterations):
    """Train in the document's loop; return (loss sum, tokens) of each iteration on this rank."""
    from mimokit import engine

    provider, data_config = provider_of(layout), data_of(layout)
    result = provider.provide(mimokit.plan(provider.described(), data=data_config))
    model, grids = engine.get_mimo_model_of(result), result.module_to_grid_map
    shared = result.plan.deployment_mode != "heterogeneous"
    read = engine.get_data_iterator
    if result.plan.deployment_mode == "colocated":
        read = engine.get_data_iterator_colocated
    iterator = read(result.config, data_config, grids, plan=result.plan, data=source(None))
    if shared:
        run = partial(engine.forward_backward_no_pipelining, model=model)
    else:
        run = partial(
            engine.forward_backward_1f1b_with_multimodule_communicator,
            model=model,
            communicator=engine.MultiModulePipelineCommunicator(
                topology=result.topology, module_to_grid_map=grids, plan=result.plan
            ),
        )
    step = forward_step
    if result.plan.deployment_mode == "colocated":
        step = partial(
            forward_step, encoder_grid=grids["images"], llm_grid=grids["language_module"]
        )
    modules = engine.get_module_to_grid_tuple(model, grids)
    optimizer = engine.MainGradAdamW(model.parameters(), lr=1e-2)
    found = []
    for iteration in range(iterations):
        losses = run(
            forward_step_func=step,
            data_iterator=iterator,
            num_microbatches=data_config.num_microbatches,
        )
        engine.finalize_model_grads(modules, iteration, data_config.num_microbatches)
        optimizer.step()
        engine.zero_grad_buffer_for_multimodule(modules)
        counts = all(grid.get_pg("tp").rank() == 0 for _, grid in modules[-1:])
        found.append(
            (
                sum(one.loss_sum for one in losses) * counts,
                sum(one.num_tokens for one in losses) * counts,
            )
        )
    model.release()
    return found


def test_a_provided_model_trains_alike_in_the_loop_of_every_layout(cluster):
    losses = {}
    for name, layout in LAYOUTS.items():
        ranks = cluster.run(_loop, layout, 4, world_size=layout.total_world_size)
        losses[name] = [
            sum(rank[step][0] for rank in ranks) / sum(rank[step][1] for rank in ranks)
            for step in range(4)
        ]
    first = losses["homogeneous"]
    assert first[-1] < first[0] - 0.1
    for name, found in losses.items():
        assert found == pytest.approx(first, rel=1e-4), name


def _provided_without_a_plan(layout):
    result = provider_of(layout).provide()
    return result.plan.batch.samples_per_microbatch, sorted(result.pg_collections)


def test_provide_needs_no_plan(cluster):
    layout = LAYOUTS["colocated, fan-in"]
    found = cluster.run(_provided_without_a_plan, layout, world_size=2)
    assert found == [(2, ["images", "language_module"])] * 2


def test_what_a_spec_does_not_say_is_asked_for():
    provider = provider_of(LAYOUTS["homogeneous"])
    provider.tokens_per_item = {}
    with pytest.raises(ConfigError, match=r"'images': .* give the provider tokens_per_item"):
        provider.described()
    del provider.language_model_spec.params["vocab_size"]
    provider.tokens_per_item = {"images": 3}
    with pytest.raises(
        ConfigError, match=r"'language_module': .* does not say vocab_size; give it"
    ):
        provider.described()
