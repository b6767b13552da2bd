"""Frame parallel of vision towers of Hugging Face transformers (written after version 5.23).

Their attention is per frame: rows of several frames are split along time. The rows of a frame stay
together in each of their outputs; Qwen2.5-VL leaves hidden states in the order of its windows, in
which the windows of a frame follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from mimokit.engine.frames.dispatch import FrameContext, FrameDispatchError, output_dispatch
from mimokit.engine.frames.registry import FrameParallel, register, wrap_vit_forward

OF_PATCHES = ("last_hidden_state", "hidden_states")
OF_TOKENS = ("pooler_output", "deepstack_features")
"""Outputs with a row per patch, and with a row per token of merge_size^2 patches."""


@register("qwen2_5_vl")
@register("qwen3_vl")
@register("qwen3_5")
def share_frames(tower: Any, how: FrameParallel) -> None:
    """Patch a vision tower that takes hidden_states and grid_thw and returns a `ModelOutput`."""
    forward, merge = tower.forward, int(tower.spatial_merge_size)

    def before(
        hidden_states: torch.Tensor, grid_thw: torch.Tensor, **options: Any
    ) -> tuple[dict[str, Any], tuple[FrameContext | None, int]]:
        tensors = [name for name, value in options.items() if isinstance(value, torch.Tensor)]
        if tensors:
            raise FrameDispatchError(
                f"{', '.join(tensors)} of the vision tower belong to the frames of this rank; "
                "leave them out, so that the tower computes them for the frames it is given."
            )
        (patches, grid), context = how.dispatch(tower, hidden_states, grid_thw, merge)
        given = len(patches)
        if not given:  # the tower cannot run on nothing; the smallest image, whose rows are dropped
            patches = patches.new_zeros(merge**2, *patches.shape[1:])
            grid = grid.new_tensor([[1, merge, merge]])
        return {"hidden_states": patches, "grid_thw": grid, **options}, (context, given)

    def after(state: tuple[FrameContext | None, int], outputs: Any) -> Any:
        context, given = state
        taken = list(_tensors(outputs))
        scales = [1 if name in OF_PATCHES else merge**2 for name, _, _ in taken]
        rows = [tensor if given else tensor[:0] for _, _, tensor in taken]
        back = output_dispatch(context, rows, scales)
        return _replaced(outputs, [(name, n) for name, n, _ in taken], back)

    tower.forward = wrap_vit_forward(before, forward, after)


def _tensors(outputs: Any) -> Iterator[tuple[str, int | None, torch.Tensor]]:
    """Yield the tensors of a `ModelOutput`: field, place where it has several, and the tensor.

    Raises:
        FrameDispatchError: it has something whose rows are not known.
    """
    if not isinstance(outputs, Mapping):
        raise FrameDispatchError(
            f"The vision tower returned a {type(outputs).__name__}; frame parallel needs a "
            "ModelOutput, so leave return_dict as it is."
        )
    for name, value in outputs.items():
        if name not in OF_PATCHES + OF_TOKENS:
            raise FrameDispatchError(
                f"The vision tower returned {name}, which cannot be given back frame by frame; do "
                "not ask for it."
            )
        if isinstance(value, torch.Tensor):
            yield name, None, value
        else:
            for place, tensor in enumerate(value):
                yield name, place, tensor


def _replaced(
    outputs: Any, places: Sequence[tuple[str, int | None]], tensors: Sequence[torch.Tensor]
) -> Any:
    fields: dict[str, Any] = dict(outputs.items())
    for (name, place), tensor in zip(places, tensors, strict=True):
        if place is None:
            fields[name] = tensor
        else:
            several = list(fields[name])
            several[place] = tensor
            fields[name] = type(outputs[name])(several)
    return type(outputs)(**fields)
