"""Health finds what neighbours can know: other bits, numbers that are none, missing collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mimokit.engine.inference.health import rank_health
from mimokit.engine.inference.loading import load_language
from mimokit.experiment.inference.health_report import HealthReport
from mimokit.planning.weights import plan_weights
from tests.engine.inference.threads import on_threads
from tests.hugging_face_weights import checkpoint

NORM = "decoder.layers.2.input_layernorm.weight"


def report(name: str, fault: Callable[[Any, int], object], ranks: int = 2) -> HealthReport:
    parameters = plan_weights(checkpoint(name), ranks).ranks[0].parameters
    alike = [one for one, planned in parameters.items() if planned.cut.dimension is None]

    def rank(group: Any) -> Any:
        shard = load_language(checkpoint(name), group)
        fault(shard, 0 if group is None else group.rank())
        return rank_health(shard, alike, 1000 + (0 if group is None else group.rank()))

    return HealthReport(tuple(on_threads(ranks, rank)), ranks)


@pytest.mark.parametrize(("name", "ranks"), [("llama", 1), ("gpt2", 2), ("qwen2", 4)])
def test_nothing_is_wrong_with_a_healthy_model(name: str, ranks: int) -> None:
    found = report(name, lambda shard, rank: None, ranks)
    assert found.healthy, found.wrong
    assert repr(found) == "<HealthReport: Nothing is wrong.>"
    assert "Health of the ranks" in str(found)
    assert found.to_json()["healthy"]
    assert len(found.ranks[0].digests) > 10
    assert found.ranks[0].counted == (0 if ranks == 1 else found.ranks[0].planned)


def another_norm(shard: Any, rank: int) -> None:
    if rank == 1:
        shard.parameters[NORM][5] += 1e-6


def two_exchanged_entries(shard: Any, rank: int) -> None:
    if rank == 1:
        norm = shard.parameters[NORM]
        norm[[3, 20]] = norm[[20, 3]]


def a_row_that_is_not_finite(shard: Any, rank: int) -> None:
    if rank == 1:
        shard.parameters["output_layer.weight"][0, 0] = torch.inf


def another_epsilon(shard: Any, rank: int) -> None:
    if rank == 1:
        functions = replace(shard.layers.functions, epsilon=10.0)
        shard.layers = replace(shard.layers, functions=functions)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (another_norm, f"Ranks 0 and 1 have different bits of {NORM}, which must be alike."),
        (
            two_exchanged_entries,
            f"Ranks 0 and 1 have different bits of {NORM}, which must be alike.",
        ),
        (
            a_row_that_is_not_finite,
            "Rank 1 has an entry that is not finite in output_layer.weight.",
        ),
        (
            another_epsilon,
            "Ranks 0 and 1 have different bits of output of decoder.final_layernorm, which must be "
            "alike.",
        ),
    ],
)
def test_a_planted_fault_is_named(fault: Callable[[Any, int], object], sentence: str) -> None:
    found = report("llama", fault)
    assert not found.healthy
    assert found.wrong == (sentence,)


def test_collectives_that_are_not_planned_are_counted() -> None:
    found = report("llama", lambda shard, rank: None)
    fewer = replace(found, ranks=(found.ranks[0], replace(found.ranks[1], counted=8)))
    assert fewer.wrong == ("Rank 1 had 8 collectives in a forward pass, and 9 are planned.",)
    assert found.spread == pytest.approx(1 / 1000.5)
