"""Several encoders on ranks of their own, in stages, frozen, absent: one process computes it."""

from __future__ import annotations

import mimokit
from tests.invariance import assert_computes_the_same
from tests.layouts_apart import apart_config
from tests.whole_runs import whole_runs


@whole_runs("absent modalities on separate ranks")
def test_vision_and_audio_meet_words_although_some_are_absent(cluster, run):
    config = run.make()
    absent = mimokit.plan(config).pipeline.schedule.absent
    assert absent == {("audio", m) for m in range(config.data.num_microbatches) if m % 2}
    assert_computes_the_same(cluster, config)


@whole_runs("a frozen module on separate ranks")
def test_a_frozen_module(cluster, run):
    config = run.make()
    frozen = config.model.get_architecture("dino").frozen
    plan = mimokit.plan(config)
    actions = [
        action.kind for rank in plan.modules["dino"].ranks for action in plan.pipeline.actions(rank)
    ]
    assert ("backward" in actions) == (not frozen)
    bridge = next(b for b in plan.disjoint_bridges if b.source == "dino")
    assert (bridge.backward.bytes_between == 0) == frozen
    assert_computes_the_same(cluster, config)


def test_the_example_of_24_ranks_can_be_planned():
    plan = mimokit.plan(apart_config((2, 2, 2), (4, 2, 2), 4))
    assert plan.world_size == 24
    assert plan.modules["images"].ranks == range(8)
    assert plan.modules["language_module"].ranks == range(8, 24)
    assert plan.pipeline.graph.total_stages == 4
