"""Several encoders, absent modalities, frozen modules, tied embeddings: one process computes it."""

from __future__ import annotations

import pytest

import mimokit
from mimokit.experiment import verify
from tests.invariance import assert_computes_the_same, oracle_of
from tests.layouts_apart import apart_config
from tests.layouts_multimodal import LANGUAGE, PRESENCE, multimodal_config
from tests.planted import planted

EQUAL = {"clip": (1, 2), "dino": (1, 2), "audio": (1, 2), LANGUAGE: (1, 2)}
# Fan-in, fan-out and equal sizes into the same language model.
MIXED = {"clip": (1, 4), "dino": (4, 1), "audio": (2, 2), LANGUAGE: (2, 2)}
FAN_IN = {"clip": (1, 4), "dino": (1, 4), "audio": (1, 4), LANGUAGE: (4, 1)}


def _is_the_same(cluster, config):
    report = assert_computes_the_same(cluster, config)
    assert report.data == "digits (2 x vision + audio + text)"
    assert set(report.weight_differences[0]) == {"clip", "dino", "audio", LANGUAGE}


def test_all_encoders_with_the_same_sizes(cluster):
    _is_the_same(cluster, multimodal_config(EQUAL, "homogeneous"))


@pytest.mark.parametrize("sizes", [MIXED, FAN_IN], ids=["mixed", "fan-in"])
def test_modalities_absent_from_samples_replicas_and_micro_batches(cluster, sizes):
    config = multimodal_config(sizes, "colocated", num_microbatches=2, presence=PRESENCE)
    assert config.data.absent_microbatches(8) == {("audio", 1)}
    _is_the_same(cluster, config)


@pytest.mark.parametrize("frozen", ["dino", LANGUAGE])
def test_a_frozen_module(cluster, frozen):
    config = multimodal_config(
        MIXED, "colocated", num_microbatches=2, presence=PRESENCE, frozen=[frozen]
    )
    _is_the_same(cluster, config)


def test_tied_embeddings_on_tensor_parallel_ranks(cluster):
    _is_the_same(cluster, multimodal_config(FAN_IN, "colocated", num_microbatches=2, tied=True))


def _tied_apart(stages):
    config = apart_config((1, 1, 1), (1, stages, 1), 2)
    network = config.model.get_architecture(LANGUAGE)
    config.model.module_architectures[LANGUAGE] = network.model_copy(
        update={"tied_embeddings": True}
    )
    return config


@pytest.mark.parametrize("stages", [2, 3])
def test_tied_embeddings_on_two_stages(cluster, stages):
    assert_computes_the_same(cluster, _tied_apart(stages))


def test_check_catches_tied_embeddings_that_drift_apart(cluster):
    config = _tied_apart(2)
    oracle = oracle_of(cluster, config)
    total = "mimokit.engine.models.language.TiedGPTModel.sync_tied_embeddings"
    with planted(cluster, total, lambda original: lambda self: None, 3):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert report.loss_differences[0] <= 1e-5, "the forward pass is right"
    assert report.gradient_differences[0][LANGUAGE] > 1e-2
    assert not report.passed


def test_check_catches_a_frozen_module_that_is_trained(cluster):
    config = multimodal_config(EQUAL, "homogeneous", frozen=["dino"])
    plan = mimokit.plan(config)
    assert (
        cluster.run(_gradients_of, plan, config, world_size=2) == [["audio", "clip", LANGUAGE]] * 2
    )
    freeze = "mimokit.engine.models.provider.MimoModelProvider._freeze"
    with planted(cluster, freeze, lambda original: lambda self, model, plan: None, 2):
        found = cluster.run(_gradients_of, plan, config, world_size=2)
    assert found == [["audio", "clip", "dino", LANGUAGE]] * 2


def _gradients_of(plan, config):
    """Return the modules on this rank that have gradients; optimizer state must be of the same."""
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.loop import prepared, training_step
    from mimokit.engine.verify.compare import local_gradients

    with prepared(plan, config, default_data) as state:
        exhaust(training_step(state))
        modules = state.model.modules()
        stepped = {id(parameter) for parameter in state.update.optimizer.state}
        with_state = sorted(
            name
            for name, module in modules.items()
            if any(id(parameter) in stepped for parameter in module.parameters())
        )
        found = sorted(name for name, module in modules.items() if local_gradients(module))
    assert found == with_state
    return found


def _steps(plan, config):
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.loop import prepared, training_step

    seen = []
    with prepared(plan, config, default_data) as state:
        exhaust(training_step(state), lambda step: seen.append((step.name, step.module)))
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
