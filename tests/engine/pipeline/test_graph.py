"""Several encoders on ranks of their own, in stages, frozen, absent: one process computes it."""

from __future__ import annotations

import pytest

import mimokit
from tests.invariance import assert_computes_the_same
from tests.layouts_apart import apart_config, apart_multimodal_config
from tests.layouts_multimodal import LANGUAGE, PRESENCE


@pytest.mark.parametrize("num_microbatches", [1, 4])
def test_two_encoders_of_different_depth_into_two_stages(cluster, num_microbatches):
    sizes = {"clip": (1, 1, 1), "dino": (1, 2, 1), LANGUAGE: (1, 2, 1)}
    assert_computes_the_same(cluster, apart_multimodal_config(sizes, num_microbatches))


@pytest.mark.parametrize("num_microbatches", [1, 4])
def test_vision_and_audio_meet_words_although_some_are_absent(cluster, num_microbatches):
    sizes = {"clip": (1, 1, 1), "dino": (1, 1, 2), "audio": (1, 2, 1), LANGUAGE: (1, 2, 1)}
    config = apart_multimodal_config(sizes, num_microbatches, presence=PRESENCE)
    absent = mimokit.plan(config).pipeline.schedule.absent
    assert absent == {("audio", m) for m in range(num_microbatches) if m % 2}
    assert_computes_the_same(cluster, config)


def test_encoders_behind_a_language_model_of_two_replicas(cluster):
    sizes = {LANGUAGE: (1, 2, 2), "clip": (2, 1, 1), "audio": (1, 1, 2)}
    config = apart_multimodal_config(sizes, 4, presence=PRESENCE)
    assert mimokit.plan(config).modules["audio"].rank_offset == 6
    assert_computes_the_same(cluster, config)


@pytest.mark.parametrize("frozen", ["dino", LANGUAGE])
def test_a_frozen_module(cluster, frozen):
    sizes = {"clip": (1, 1, 1), "dino": (1, 2, 1), LANGUAGE: (1, 2, 1)}
    config = apart_multimodal_config(sizes, 4, frozen=[frozen])
    plan = mimokit.plan(config)
    actions = [
        action.kind for rank in plan.modules["dino"].ranks for action in plan.pipeline.actions(rank)
    ]
    assert ("backward" in actions) == (frozen != "dino")
    bridge = next(b for b in plan.disjoint_bridges if b.source == "dino")
    assert (bridge.backward.bytes_between == 0) == (frozen == "dino")
    assert_computes_the_same(cluster, config)


def test_a_language_model_of_four_stages_alone(cluster):
    config = apart_multimodal_config({LANGUAGE: (1, 4, 1)}, 4)
    assert mimokit.plan(config).pipeline.slots.stages[0].total == 0
    assert_computes_the_same(cluster, config)


def test_the_example_of_24_ranks_can_be_planned():
    plan = mimokit.plan(apart_config((2, 2, 2), (4, 2, 2), 4))
    assert plan.world_size == 24
    assert plan.modules["images"].ranks == range(8)
    assert plan.modules["language_module"].ranks == range(8, 24)
    assert plan.pipeline.graph.total_stages == 4
