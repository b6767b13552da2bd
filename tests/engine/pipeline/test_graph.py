"""What is planned for encoders on ranks of their own that are frozen or absent."""

import mimokit
from tests.layouts_apart import apart_multimodal_config
from tests.layouts_multimodal import LANGUAGE, PRESENCE


def test_messages_of_modalities_that_are_absent_are_not_planned():
    sizes = {"clip": (1, 1, 1), "audio": (1, 2, 1), LANGUAGE: (1, 2, 1)}
    config = apart_multimodal_config(sizes, 4, presence=PRESENCE)
    absent = mimokit.plan(config).pipeline.schedule.absent
    assert absent == {("audio", m) for m in range(config.data.num_microbatches) if m % 2}


def test_a_frozen_module_gets_no_gradients():
    sizes = {"clip": (1, 1, 1), "dino": (1, 2, 1), LANGUAGE: (1, 2, 1)}
    plan = mimokit.plan(apart_multimodal_config(sizes, 4, frozen=["dino"]))
    actions = [
        action.kind for rank in plan.modules["dino"].ranks for action in plan.pipeline.actions(rank)
    ]
    assert "backward" not in actions
    bridge = next(b for b in plan.disjoint_bridges if b.source == "dino")
    assert bridge.backward.bytes_between == 0
