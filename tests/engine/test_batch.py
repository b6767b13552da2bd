"""Cutting samples out of batches: every tensor along the dimension its samples lie in."""

from __future__ import annotations

import pytest
import torch

from mimokit.engine.data.batch import check_tokens, get_batch, slice_modality, slice_text


def test_text_is_cut_along_samples():
    batch = {
        "input_ids": torch.arange(12).reshape(4, 3),
        "position_ids": torch.arange(60).reshape(3, 4, 5),
        "modality_inputs": {},
    }
    part = slice_text(batch, 2, 3)
    assert part["input_ids"].tolist() == [[6, 7, 8]]
    assert part["position_ids"].shape == (3, 1, 5), "multimodal rotary: samples lie in dimension 1"
    assert "modality_inputs" not in part


def test_two_dimensional_positions_of_three_samples_are_no_multimodal_rotary():
    assert slice_text({"position_ids": torch.zeros(3, 5)}, 1, 2)["position_ids"].shape == (1, 5)


def test_images_are_cut_by_what_samples_hold():
    inputs = {
        "items_per_sample": torch.tensor([0, 0, 1, 2]),
        "vit_encoder": {"pixel_values": torch.arange(3.0).reshape(3, 1, 1)},
    }
    assert len(slice_modality(inputs, 0, 2)["vit_encoder"]["pixel_values"]) == 0
    part = slice_modality(inputs, 2, 4)
    assert part["vit_encoder"]["pixel_values"].flatten().tolist() == [0, 1, 2]
    assert part["items_per_sample"].tolist() == [1, 2]


def test_packed_patches_are_cut_between_images():
    """Patches 4, 16, 9, 25 over two ranks: 20 and 34 rows, never 27 and 27."""
    inputs = {
        "items_per_sample": torch.tensor([1, 1, 1, 1]),
        "vit_encoder": {
            "hidden_states": torch.arange(54.0)[:, None],
            "grid_thw": torch.tensor([[1, 2, 2], [1, 4, 4], [1, 3, 3], [1, 5, 5]]),
        },
    }
    first, second = slice_modality(inputs, 0, 2), slice_modality(inputs, 2, 4)
    assert len(first["vit_encoder"]["hidden_states"]) == 20
    assert second["vit_encoder"]["hidden_states"].flatten().tolist() == list(range(20, 54))
    assert second["vit_encoder"]["grid_thw"].tolist() == [[1, 3, 3], [1, 5, 5]]


def test_sequence_first_states_are_cut_in_dimension_one():
    inputs = {
        "items_per_sample": torch.ones(4, dtype=torch.int64),
        "clip": {"hidden_states": torch.zeros(7, 4, 2)},
    }
    assert slice_modality(inputs, 1, 3)["clip"]["hidden_states"].shape == (7, 2, 2)


@pytest.mark.parametrize(
    ("rows", "grid", "message"),
    [
        (5, [[1, 2, 2]], "5 patch rows but grid_thw describes 4"),
        (8, [[1, 2, 2], [1, 2, 2]], "grid_thw has 2 rows but the samples have 1 items"),
    ],
)
def test_patches_that_do_not_fit_the_grid_are_refused(rows, grid, message):
    inputs = {
        "items_per_sample": torch.tensor([1]),
        "vit_encoder": {"hidden_states": torch.zeros(rows, 3), "grid_thw": torch.tensor(grid)},
    }
    with pytest.raises(ValueError, match=message):
        slice_modality(inputs, 0, 1)


def _batch(tokens, items):
    return {
        "input_ids": torch.tensor(tokens),
        "modality_inputs": {"images": {"items_per_sample": torch.tensor(items)}},
    }


def test_placeholders_that_match_pass():
    batch = _batch([[5, 16, 16, 7], [5, 6, 7, 8]], [1, 0])
    assert get_batch(iter([batch]), {"images": 16}, {"images": 2}) is batch


def test_image_tokens_that_do_not_match_are_refused_sample_by_sample():
    """The totals agree here; the samples do not."""
    batch = _batch([[16, 16, 16, 7], [16, 6, 7, 8]], [1, 1])
    message = (
        "Sample 0 of the batch has 3 'images' placeholder tokens but its 1 items give 2 rows; "
        "they must be equal."
    )
    with pytest.raises(ValueError, match=message):
        check_tokens(batch, {"images": 16}, {"images": 2})
