"""Modules that are absent or frozen are skipped, and one process computes the same."""

import mimokit
from tests import seams
from tests.invariance import assert_computes_the_same, oracle_of
from tests.layouts_multimodal import LANGUAGE, PRESENCE, multimodal_config
from tests.planted import planted
from tests.rank_steps import run_step, state_of
from tests.whole_runs import EQUAL, whole_runs


@whole_runs("a frozen part of an encoder")
def test_a_part_of_an_encoder_is_frozen(cluster, run):
    config = run.make()
    (part,) = config.model.get_architecture("images").frozen
    assert_computes_the_same(cluster, config)
    names = {name.split(".")[0] for name in oracle_of(cluster, config).steps[0].gradients["images"]}
    assert names == {"encoder": {"input_projections"}, "projector": {"encoders"}}[part]


def test_check_catches_a_frozen_module_that_is_trained(cluster):
    config = multimodal_config(EQUAL, "homogeneous", frozen=["dino"])
    plan = mimokit.plan(config)
    assert (
        cluster.run(_gradients_of, plan, config, world_size=2) == [["audio", "clip", LANGUAGE]] * 2
    )
    with planted(cluster, seams.FREEZE, lambda original: lambda self, model, plan: None, 2):
        found = cluster.run(_gradients_of, plan, config, world_size=2)
    assert found == [["audio", "clip", "dino", LANGUAGE]] * 2


def _gradients_of(plan, config):
    """Return the modules on this rank that have gradients; optimizer state must be of the same."""
    from mimokit.engine.models.weights import named_parameters
    from mimokit.engine.verify.compare import local_gradients

    with state_of(plan, config) as state:
        run_step(state)
        modules = state.model.modules()
        stepped = {id(parameter) for parameter in state.update.optimizer.state}
        with_state = sorted(
            name
            for name, module in modules.items()
            if any(id(parameter) in stepped for parameter in module.parameters())
        )
        found = sorted(
            name
            for name, module in modules.items()
            if local_gradients(named_parameters(module.module))
        )
    assert found == with_state
    return found


def _steps(plan, config):

    seen = []
    with state_of(plan, config) as state:
        run_step(state, lambda step: seen.append((step.name, step.module)))
    return seen


def test_what_is_frozen_or_absent_is_skipped(cluster):
    config = multimodal_config(
        EQUAL, "homogeneous", num_microbatches=2, presence=PRESENCE, frozen=["dino"]
    )
    first, second = cluster.run(_steps, mimokit.plan(config), config, world_size=2)
    for steps in (first, second):
        assert steps.count(("backward", "clip")) == 2
        assert ("backward", "dino") not in steps
        assert ("scatter", "dino") not in steps
        assert steps.count(("forward", "audio")) == 1, "absent from the second micro-batch"
        assert steps.count(("backward", "audio")) == 1
    assert first.count(("forward", "dino")) == 2
    assert second.count(("forward", "dino")) == 0, "absent from this replica's samples"
