"""Batches of several modules, and cutting samples out of them.

A batch is a dictionary:

    input_ids, labels, loss_mask, position_ids    [samples, tokens]; position_ids may be
                                                  [3, samples, tokens] (multimodal rotary)
    modality_inputs: {modality: {
        "items_per_sample": [samples]             images, clips, … of every sample
        encoder name: {
            "pixel_values", "grid_thw", …         [items, …]: one row per item
            "hidden_states"                       [tokens, samples, features], or with grid_thw
                                                  [sum of t*h*w, features], patches in order
        }}}

Every tensor is cut along the dimension in which its samples lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

Batch = dict[str, Any]
ITEMS = "items_per_sample"


def get_batch(
    iterator: Iterator[Batch],
    special_token_ids: Mapping[str, int],
    tokens_per_item: Mapping[str, int],
) -> Batch:
    """Take the next batch and check that placeholders and items agree within every sample.

    Raises:
        ValueError: see `check_tokens`.
    """
    batch = next(iterator)
    check_tokens(batch, special_token_ids, tokens_per_item)
    return batch


def check_tokens(
    batch: Batch, special_token_ids: Mapping[str, int], tokens_per_item: Mapping[str, int]
) -> None:
    """Compare placeholders with image rows, sample by sample.

    Args:
        batch: see the module's docstring.
        special_token_ids: modality -> placeholder id.
        tokens_per_item: modality -> embeddings that one item becomes.

    Raises:
        ValueError: naming the first sample and modality in which they differ.
    """
    for modality, inputs in (batch.get("modality_inputs") or {}).items():
        placeholders = (batch["input_ids"] == special_token_ids[modality]).sum(dim=1)
        rows = inputs[ITEMS] * tokens_per_item[modality]
        differs = (placeholders != rows).nonzero()
        if len(differs):
            sample = int(differs[0])
            raise ValueError(
                f"Sample {sample} of the batch has {int(placeholders[sample])} {modality!r} "
                f"placeholder tokens but its {int(inputs[ITEMS][sample])} items give "
                f"{int(rows[sample])} rows; they must be equal."
            )


def slice_text(batch: Batch, start: int, stop: int) -> Batch:
    """Return samples [start, stop) of everything but the modality inputs."""
    return {
        key: _slice_text_tensor(key, value, start, stop)
        for key, value in batch.items()
        if key != "modality_inputs"
    }


def _slice_text_tensor(key: str, value: Any, start: int, stop: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    multimodal_rotary = key == "position_ids" and value.dim() == 3
    return value.narrow(1 if multimodal_rotary else 0, start, stop - start).contiguous()


def slice_modality(inputs: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
    """Return samples [start, stop) of the inputs of one modality.

    Raises:
        ValueError: if the rows do not fit the items.
    """
    items = inputs[ITEMS]
    first, last = int(items[:start].sum()), int(items[:stop].sum())
    result: dict[str, Any] = {ITEMS: items[start:stop]}
    for encoder, tensors in inputs.items():
        if encoder == ITEMS:
            continue
        rows = _patch_rows(tensors, int(items.sum()))
        result[encoder] = {
            key: _slice_encoder_tensor(key, value, (start, stop), (first, last), rows)
            for key, value in tensors.items()
        }
    return result


def _patch_rows(tensors: Mapping[str, Any], items: int) -> list[int] | None:
    """Return where the patches of each item begin, if the patches of all items lie in a row."""
    grid = tensors.get("grid_thw")
    if grid is None:
        return None
    if len(grid) != items:
        raise ValueError(f"grid_thw has {len(grid)} rows but the samples have {items} items.")
    bounds = [0, *torch.as_tensor(grid).prod(dim=1).cumsum(0).tolist()]
    patches = tensors["hidden_states"].shape[0]
    if bounds[-1] != patches:
        raise ValueError(
            f"hidden_states has {patches} patch rows but grid_thw describes {bounds[-1]}."
        )
    return bounds


def _slice_encoder_tensor(
    key: str,
    value: Any,
    samples: tuple[int, int],
    items: tuple[int, int],
    patch_bounds: Sequence[int] | None,
) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if key == "hidden_states" and patch_bounds is not None:
        start, stop, dimension = patch_bounds[items[0]], patch_bounds[items[1]], 0
    elif key == "hidden_states":
        start, stop, dimension = samples[0], samples[1], 1
    else:
        start, stop, dimension = items[0], items[1], 0
    return value.narrow(dimension, start, stop - start).contiguous()


def to_device(data: Any, device: torch.device) -> Any:
    """Move all tensors of a batch."""
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, dict):
        return {key: to_device(value, device) for key, value in data.items()}
    return data
