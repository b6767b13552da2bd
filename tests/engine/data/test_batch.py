"""Cutting samples out of batches: every tensor along the dimension its samples lie in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mimokit.engine.data.batch import check_tokens, rows_per_sample, slice_modality, slice_text
from tests.rows import rows


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


@rows(
    "rows, grid, message",
    (5, [[1, 2, 2]], "5 patch rows but grid_thw describes 4"),
    (8, [[1, 2, 2], [1, 2, 2]], "grid_thw has 2 rows but the samples have 1 item"),
)
def test_patches_that_do_not_fit_the_grid_are_refused(rows, grid, message):
    inputs = {
        "items_per_sample": torch.tensor([1]),
        "vit_encoder": {"hidden_states": torch.zeros(rows, 3), "grid_thw": torch.tensor(grid)},
    }
    with pytest.raises(ValueError, match=message):
        slice_modality(inputs, 0, 1)


def _spoken(tokens, items):
    return {
        "items_per_sample": torch.tensor(items),
        "whisper_encoder": {
            "input_features": torch.zeros(len(tokens), 2, 8),
            "tokens_per_item": torch.tensor(tokens),
        },
    }


def test_items_may_become_different_numbers_of_rows():
    inputs = _spoken([3, 1, 4], [1, 0, 2])
    assert rows_per_sample(inputs, 3, tokens_per_item=9).tolist() == [3, 0, 5]
    part = slice_modality(inputs, 1, 3)
    assert part["whisper_encoder"]["tokens_per_item"].tolist() == [1, 4]
    assert rows_per_sample(part, 2, 9).tolist() == [0, 5]
    assert rows_per_sample({"items_per_sample": torch.tensor([2, 0])}, 2, 9).tolist() == [18, 0]
    assert rows_per_sample(None, 2, 9).tolist() == [0, 0]


def test_tokens_of_another_number_of_items_are_refused():
    with pytest.raises(ValueError, match="has 2 entries but the samples have 3 items"):
        rows_per_sample(_spoken([3, 1], [1, 0, 2]), 3, 9)


def test_each_modality_is_checked_against_its_own_placeholders():
    batch = {
        "input_ids": torch.tensor([[7, 7, 8, 0], [8, 8, 8, 0]]),
        "modality_inputs": {
            "images": {"items_per_sample": torch.tensor([1, 0])},
            "audio": _spoken([1, 2], [1, 1]),
        },
    }
    with pytest.raises(ValueError, match="Sample 1 of the batch has 3 'audio' placeholder tokens"):
        check_tokens(batch, {"images": [7], "audio": [8]}, {"images": 2, "audio": 5})
    batch["modality_inputs"]["audio"] = _spoken([1, 3], [1, 1])
    check_tokens(batch, {"images": [7], "audio": [8]}, {"images": 2, "audio": 5})


@rows(
    "tokens, inputs, rows, sentence",
    # The totals agree here; the samples do not.
    ([[7, 7, 7, 0], [7, 6, 0, 8]], {"images": {"items_per_sample": torch.ones(2, dtype=int)}}, 2,
     "Sample 0 of the batch has 3 'images' placeholder tokens but 2 rows of 1 item; they must be "
     "equal."),
    ([[0, 1], [7, 1]], {}, 1, "Sample 1 of the batch has 1 'images' placeholder tokens"),
    ([[0, 0]], {"sound": _spoken([1], [1])}, 1,
     "inputs of 'sound', which is not an encoder of the model"),
)  # fmt: skip
def test_placeholders_and_inputs_that_do_not_match_are_refused(tokens, inputs, rows, sentence):
    batch = {"input_ids": torch.tensor(tokens), "modality_inputs": inputs}
    with pytest.raises(ValueError, match=sentence):
        check_tokens(batch, {"images": [7]}, {"images": rows})


@given(st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=6), st.data())
def test_pieces_of_a_batch_hold_its_items_and_rows(samples, data):
    """Cut at any place, items, tokens and rows of the pieces are those of the whole, in order."""
    tokens = [count for sample in samples for count in sample]
    inputs = _spoken(tokens, [len(sample) for sample in samples])
    cut = data.draw(st.integers(0, len(samples)))
    pieces = [slice_modality(inputs, 0, cut), slice_modality(inputs, cut, len(samples))]
    assert [
        count for piece in pieces for count in piece["whisper_encoder"]["tokens_per_item"].tolist()
    ] == tokens
    assert [
        rows
        for piece, size in zip(pieces, (cut, len(samples) - cut), strict=True)
        for rows in rows_per_sample(piece, size, 9).tolist()
    ] == [sum(sample) for sample in samples]
