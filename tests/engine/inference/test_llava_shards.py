"""A LLaVA is checked in all its parts, and a wrong shard of any part is found and named.

Ranks are threads, and the oracle is Hugging Face's model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mimokit.architecture.huggingface.families import ENCODER, LANGUAGE, PROJECTOR
from mimokit.engine.inference.checking import checked_shard, compared, hugging_face, parts_on_rank
from mimokit.engine.inference.vision import PROJECTOR_PART
from mimokit.experiment.inference.weight_check import CheckReport, layers_of
from mimokit.planning.weights import WeightPlanner
from mimokit.planning.weights.running import TOLERANCES, check_input
from tests.engine.inference.threads import on_threads
from tests.llava import IMAGE_TOKEN, llava_checkpoint

TOWER_LAYERS = {"clip": 3, "clip_full": 2, "siglip": 4}
"""Variant -> layers up to its vision_feature_layer, of 4."""


@functools.cache
def given_and_wanted(variant: str) -> tuple[Any, Any]:
    planner = WeightPlanner(llava_checkpoint(variant), 2)
    given = check_input(planner, 2, 16, 0)
    return given, hugging_face(llava_checkpoint(variant), given, "float32")


def report(variant: str, fault: Callable[[Any], object] | None = None) -> CheckReport:
    """Check two ranks, of which a fault has changed the second."""
    given, wanted = given_and_wanted(variant)

    def rank(group: Any) -> Any:
        shard = checked_shard(llava_checkpoint(variant), group, "float32")
        if fault is not None and group.rank() == 1:
            fault(shard)
        return compared(shard, given, parts_on_rank(shard, given), wanted)

    found = layers_of(on_threads(2, rank))
    return CheckReport("TP 2", "transformers", "float32", TOLERANCES["float32"], found)


@pytest.mark.parametrize("variant", TOWER_LAYERS)
def test_right_shards_of_all_parts_pass(variant: str) -> None:
    found = report(variant)
    assert found.passed, found.verdict
    seen = [f"decoder.layers.{number}" for number in range(TOWER_LAYERS[variant])]
    layers = [f"decoder.layers.{number}" for number in range(4)]
    words = ["embedding", *layers, "decoder.final_layernorm", "output_layer"]
    assert [one.name for one in found.layers] == [
        *(f"{ENCODER}{one}" for one in ("embedding", *seen)),
        PROJECTOR_PART,
        *(f"{LANGUAGE}{one}" for one in words),
    ]
    assert found.max_logit_difference < 1e-12
    # Not compared with itself: something is rounded, though not the logits on every processor.
    assert 0 < max(one.max_difference for one in found.layers) < 1e-12
    rows = given_and_wanted(variant)[0].rows
    assert not any(IMAGE_TOKEN in row for row in rows)


def entry(name: str) -> Callable[[Any], object]:
    def change(shard: Any) -> None:
        shard.parameters[name].view(-1)[0] += 1.0

    return change


def without_the_first_patch(shard: Any) -> None:
    """Keep the class token in place of the last patch."""
    features = shard.tower.hidden_states
    shard.tower.hidden_states = lambda *given: features(*given).roll(1, dims=1)


def another_activation(shard: Any) -> None:
    functions = replace(shard._projector.functions, activation="gelu_tanh")
    shard._projector = replace(shard._projector, functions=functions)


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        (entry(f"{ENCODER}position_embedding"), f"{ENCODER}embedding"),
        (entry(f"{ENCODER}decoder.layers.1.mlp.linear_fc1.weight"), f"{ENCODER}decoder.layers.1"),
        (entry(f"{PROJECTOR}encoder.linear_fc2.weight"), PROJECTOR_PART),
        (entry(f"{PROJECTOR}encoder.linear_fc2.bias"), PROJECTOR_PART),
        (without_the_first_patch, PROJECTOR_PART),
        (another_activation, PROJECTOR_PART),
        (
            entry(f"{LANGUAGE}decoder.layers.2.self_attention.linear_qkv.weight"),
            f"{LANGUAGE}decoder.layers.2",
        ),
        (entry(f"{LANGUAGE}output_layer.weight"), f"{LANGUAGE}output_layer"),
    ],
)
def test_a_planted_error_is_found_and_its_part_named(
    fault: Callable[[Any], object], part: str
) -> None:
    found = report("clip", fault)
    assert not found.passed
    assert found.first_wrong is not None
    assert found.first_wrong.name == part
