"""Several encoders on ranks of their own, in stages, frozen, absent: one process computes it."""

import mimokit
from tests.invariance import assert_computes_the_same
from tests.layouts_apart import apart_multimodal_config
from tests.layouts_multimodal import LANGUAGE, PRESENCE
from tests.whole_runs import whole_runs


def test_messages_of_modalities_that_are_absent_are_not_planned():
    sizes = {"clip": (1, 1, 1), "audio": (1, 2, 1), LANGUAGE: (1, 2, 1)}
    config = apart_multimodal_config(sizes, 4, presence=PRESENCE)
    absent = mimokit.plan(config).pipeline.schedule.absent
    assert absent == {("audio", m) for m in range(config.data.num_microbatches) if m % 2}


@whole_runs("a frozen module on separate ranks")
def test_a_frozen_module(cluster, run):
    config = run.make()
    plan = mimokit.plan(config)
    actions = [
        action.kind for rank in plan.modules["dino"].ranks for action in plan.pipeline.actions(rank)
    ]
    assert "backward" not in actions
    bridge = next(b for b in plan.disjoint_bridges if b.source == "dino")
    assert bridge.backward.bytes_between == 0
    assert_computes_the_same(cluster, config)
