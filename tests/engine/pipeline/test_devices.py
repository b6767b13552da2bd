"""No tensor of a step is made on another device than that of its rank."""

from collections import Counter
from typing import Any

import pytest

import mimokit
from mimokit.cluster import EngineCluster, RankError
from mimokit.config import ExperimentConfig, StrategyConfig
from mimokit.experiment import verify
from tests import seams
from tests.layouts import digits_config
from tests.layouts_apart import apart_multimodal_config, decoded_config
from tests.layouts_multimodal import LANGUAGE, PRESENCE, multimodal_config
from tests.layouts_pipelines import shared_pipeline
from tests.planted import planted
from tests.rank_steps import run_step, state_of
from tests.whole_runs import (
    cut_along_sequences,
    experts_on_shared_stages,
    in_precision,
    recomputed,
    with_sizes,
)

RANKS = 4
MESSAGES = {"messages.py", "routes.py", "colocated.py", "communicator.py", "collectives.py"}
"""The files that carry messages, none of which may wait for the device."""

COUNTS_OF_ITEMS = {
    "batch.py slice_modality", "stages.py _inputs", "executor.py _note_items",
    "loaded_batch.py rows_of_group",
}  # fmt: skip
"""Where items of samples are counted, which stay on the host."""


def losses_on_two_devices(plan: Any, config: ExperimentConfig) -> tuple[list[float], list[str]]:
    """Return the losses of two steps on a rank that has a device, and where the host waited."""
    from tests.two_devices import two_devices

    with two_devices() as devices, state_of(plan, config) as state:
        devices.waits.clear()
        losses = [run_step(state).loss for _ in range(2)]
    return losses, devices.waits


def accuracy_on_two_devices(plan: Any, config: ExperimentConfig) -> float:
    """Return the accuracy on held-out samples of a rank that has a device."""
    from mimokit.engine.training.evaluation import evaluate
    from tests.two_devices import two_devices

    with two_devices(), state_of(plan, config) as state:
        return evaluate(state.model, state.data, config.data, samples=8).token_accuracy


def on_two_devices(function: str, *args: Any) -> Any:
    """Return what a function that proves a layout returns on a rank with a device."""
    from mimokit.experiment import proofs_on_rank
    from tests.two_devices import two_devices

    with two_devices():
        return getattr(proofs_on_rank, function)(*args)


def _layouts() -> dict[str, ExperimentConfig]:
    shared = {"qwen": (1, 4), "audio": (2, 2), "dino": (4, 1), LANGUAGE: (2, 2)}
    apart = {"qwen": (1, 2, 1), LANGUAGE: (1, 2, 1)}
    options = {"num_microbatches": 2, "presence": PRESENCE, "three_axes": True}
    return {
        "shared ranks": multimodal_config(shared, "colocated", **options),
        "separate ranks": apart_multimodal_config(apart, **options),
        "stages of shared ranks": _stages(),
        # In chunks, on contexts and in rows, with recomputed attention.
        "experts in bf16": in_precision(experts_on_shared_stages(), "bf16"),
        "slices in fp8": in_precision(cut_along_sequences(_stages()), "fp8").finalize(),
        "decoder, zb-h1, dropout, shards of states": _decoder(),
    }


def _stages() -> ExperimentConfig:
    """Return two stages of all modules, of which a rank reads images and words."""
    return shared_pipeline("homogeneous", (2, 2, 1), {"qwen": (2, 1)}, 2, presence=PRESENCE)


def _decoder() -> ExperimentConfig:
    """Return two stages before a decoder, that drop, recompute and share states."""
    sizes = {"images": (1, 1, 1), LANGUAGE: (1, 2, 1), "writer": (1, 1, 1)}
    config = decoded_config(sizes, 2, pipeline_order="zb-h1")
    full = dict.fromkeys(sizes, "full")
    return with_sizes(recomputed(config, **full), sizes, use_distributed_optimizer=True).finalize()


@pytest.mark.parametrize("name", _layouts())
def test_a_step_makes_its_tensors_on_the_device_of_the_rank(
    cluster: EngineCluster, name: str
) -> None:
    config = _layouts()[name]
    plan = mimokit.plan(config)
    results = cluster.run(losses_on_two_devices, plan, config, world_size=RANKS)
    losses, _ = results[0]
    assert losses[1] < losses[0]
    waits = Counter(wait for _, waits in results for wait in waits)
    assert not [wait for wait in waits if wait.split()[0] in MESSAGES or wait in COUNTS_OF_ITEMS]


def loss_with_loaded_states(plan: Any, config: ExperimentConfig) -> list[float]:
    """Return the losses of two steps; before the second one states are made as for a checkpoint."""
    from mimokit.engine.checkpoints.state import begin_optimizer_states, optimizer_states_of
    from tests.two_devices import two_devices

    with two_devices(), state_of(plan, config) as state:
        losses = [run_step(state).loss]
        saved = {held.name for held in optimizer_states_of(state.model, state.update)}
        state.update.optimizer.state.clear()
        begin_optimizer_states(state.model, state.update, saved)
        return [*losses, run_step(state).loss]


def test_states_of_a_checkpoint_are_loaded_to_the_device_of_the_rank(
    cluster: EngineCluster,
) -> None:
    config = digits_config()
    ((first, second),) = cluster.run(
        loss_with_loaded_states, mimokit.plan(config), config, world_size=1
    )
    assert second < first


@pytest.mark.parametrize("name", ["stages of shared ranks", "experts in bf16"])
def test_held_out_samples_are_tested_on_the_device_of_the_rank(
    cluster: EngineCluster, name: str
) -> None:
    config = _layouts()[name]
    plan = mimokit.plan(config)
    found = cluster.run(accuracy_on_two_devices, plan, config, world_size=RANKS)
    assert found == [found[0]] * RANKS
    assert 0 <= found[0] <= 1


def test_a_layout_is_proved_on_the_devices_of_its_ranks(
    cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process, layout and all that is compared."""
    run = EngineCluster.run
    monkeypatch.setattr(
        EngineCluster,
        "run",
        lambda self, function, *args, **named: run(
            self, on_two_devices, function.__name__, *args, **named
        ),
    )
    replicas = digits_config((1, 1), (1, 1))
    replicas.strategy = StrategyConfig(name="diloco", replicas=2, H=1)
    for config in (_layouts()["experts in bf16"], replicas.finalize()):
        report = verify(cluster, config, steps=2)
        assert report.passed, report.verdict


def _mask_of_the_host(original: Any) -> Any:
    """Plant: the mask of attention is made on the host."""
    return lambda tokens, device: original(tokens, "cpu")


def test_a_tensor_on_the_wrong_device_is_found(cluster: EngineCluster) -> None:
    config = _layouts()["separate ranks"]
    with (
        planted(cluster, seams.CAUSAL_MASK, _mask_of_the_host, RANKS),
        pytest.raises(RankError, match="mixes tensors of the rank's device and the host"),
    ):
        cluster.run(losses_on_two_devices, mimokit.plan(config), config, world_size=RANKS)
