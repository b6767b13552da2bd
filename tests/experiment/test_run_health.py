"""The health of a training run: what differs, what is not finite, and a fault on a rank."""

from __future__ import annotations

from typing import Any

import pytest

import mimokit
from mimokit.cluster import EngineCluster
from mimokit.experiment import Evaluations, train
from mimokit.experiment.run_health import RunHealth
from mimokit.planning.types import LayoutPlan
from mimokit.samples import HealthSample
from tests.layouts import digits_config
from tests.planted import planted

NORM, SHARD = "language_module.norm.weight", "language_module.fc1.weight (shard {} of 2)"


@pytest.fixture(scope="module")
def plan() -> LayoutPlan:
    """Four ranks: the encoder in four replicas, the language model in two of two shards."""
    return mimokit.plan(digits_config((1, 4), (2, 2)))


def said(iteration: int = 0, **changed: Any) -> list[HealthSample]:
    """Return what four ranks say; `rank_1={...}` replaces digests of a rank."""
    return [
        HealthSample(
            rank=rank,
            iteration=iteration,
            digests={NORM: 5, SHARD.format(rank % 2): rank % 2, **changed.get(f"rank_{rank}", {})},
        )
        for rank in range(4)
    ]


def test_ranks_with_the_same_tensors_are_healthy(plan: LayoutPlan) -> None:
    found = RunHealth.of([*said(0), *said(9)], plan)
    assert found.healthy
    assert [one.iteration for one in found.ranks] == [9] * 4
    assert "Nothing is wrong." in found._repr_html_()
    assert "No rank has finished an iteration." in RunHealth.of([], plan)._repr_html_()


def test_a_shard_is_compared_with_its_copy_and_a_norm_with_all(plan: LayoutPlan) -> None:
    (sentence,) = RunHealth.of(said(3, rank_2={SHARD.format(0): 8}), plan).wrong
    assert sentence == (
        "Ranks 0 and 2 have different bits of language_module.fc1.weight (shard 0 of 2) after "
        "iteration 3, which must be alike."
    )
    found = RunHealth.of(said(0, rank_1={NORM: 6, SHARD.format(1): 9}), plan)
    assert [(one.ranks, len(one.names)) for one in found.differences] == [
        ((0, 1), 1),
        ((1, 3), 1),
    ]


def test_the_first_iteration_with_a_fault_counts_and_many_are_shortened(plan: LayoutPlan) -> None:
    first = said(0, **{f"rank_{rank}": {NORM: rank} for rank in range(4)})
    bad = [
        HealthSample(rank=rank, iteration=0, digests={}, not_finite=["a", "b"]) for rank in (4, 5)
    ]
    found = RunHealth.of([*said(9), *first, *bad], plan)
    assert found.ranks[0].iteration == 0
    assert found.wrong[0].startswith("Rank 4 has an entry that is not finite in a and 1 other")
    assert found.wrong[-1] == "And 1 more."
    assert len(found.wrong) == 5


def test_a_rank_whose_weights_go_another_way_is_named(cluster: EngineCluster) -> None:
    config = digits_config((1, 4), (2, 2), num_iterations=2)
    short = Evaluations(final_samples=8)
    run = train(cluster, config, evaluations=short)
    run.result()
    assert run.health().healthy
    assert len(run.health().ranks) == 4
    assert len(run.health().ranks[0].digests) > 20
    with planted(cluster, "mimokit.engine.training.loop.health_sample", drifting, 4):
        run = train(cluster, config, evaluations=short)
        run.result()
    wrong = run.health().wrong
    assert wrong[0].startswith("Ranks 0 and 3 have different bits of language_module.")
    assert "final_layernorm.weight after iteration 0, which must be alike" in wrong[0]
    assert len(wrong) == 1


def drifting(original: Any) -> Any:
    """Change one entry of a norm on rank 3 in front of the first look."""

    def look(model: Any, iteration: int) -> Any:
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 3 and not iteration:
            module = model.modules()["language_module"].module
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    if name.endswith("final_layernorm.weight"):
                        parameter[0] += 1e-6
        return original(model, iteration)

    return look
