"""Tensors as they were after each tick."""

import torch

from mimokit.engine.stepper.tensor_copies import KeptTensors


def test_a_tensor_is_as_it_was_after_each_tick_also_if_it_changes_in_place() -> None:
    kept, tensor = KeptTensors(3), torch.ones(4)
    for number in range(3):
        kept.remember(number, {"weight": tensor})
        if number:
            tensor += 1
    found = [kept.get(number, "weight") for number in range(3)]
    assert found[0] is found[1], "nothing has changed"
    assert [float(one[0]) for one in found if one is not None] == [1, 1, 2]
