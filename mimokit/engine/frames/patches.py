"""Patches of models by name, which put dispatch around the forward of an encoder."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from mimokit.engine.frames.dispatch import (
    FrameContext,
    FrameDispatchError,
    input_dispatch,
    output_dispatch,
)
from mimokit.planning.frames import PATCHES, FrameCost, FrameSettings
from mimokit.units import listed

VIT_FRAME_PARALLEL = "vit_frame_parallel"


@dataclass(frozen=True)
class FrameParallel:
    """How the ranks of a group share the frames of a vision encoder.

    The group is that of data parallel. `plan_frames` explains `tolerance` and
    `ranks_per_node`.
    """

    group: dist.ProcessGroup
    cost: FrameCost = PATCHES
    tolerance: float = 0.01
    ranks_per_node: int | None = None

    def dispatch(
        self,
        module: torch.nn.Module,
        hidden_states: torch.Tensor,
        grid_thw: torch.Tensor,
        merge_size: int,
        split_time: bool = True,
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], FrameContext | None]:
        """Dispatch the inputs of an encoder; see `input_dispatch`. Collective.

        It makes one token of merge_size^2 patches; with `split_time` its attention is per frame.
        """
        settings = FrameSettings(
            merge_size, self.cost, split_time, self.tolerance, self.ranks_per_node
        )
        trained = any(parameter.requires_grad for parameter in module.parameters())
        return input_dispatch(
            hidden_states, grid_thw, group=self.group, settings=settings, trained=trained
        )


Patch: TypeAlias = Callable[[Any, FrameParallel], None]
"""Changes the forward of a module, the encoder itself."""

_patches: dict[tuple[str, str], Patch] = {}


def register(model: str, patch: str = VIT_FRAME_PARALLEL) -> Callable[[Patch], Patch]:
    """Register a function as the patch of a model; `ValueError` if the model has such a patch.

    It takes the vision encoder and how to share its frames, and puts `wrap_vit_forward` around the
    forward of the encoder.
    """

    def take(function: Patch) -> Patch:
        if not _again(_patches.get((model, patch), function), function):
            raise ValueError(f"Model {model!r} has a patch {patch!r} already.")
        _patches[model, patch] = function
        return function

    return take


def _again(known: Patch, function: Patch) -> bool:
    """Return whether two functions are of one place in a file, which was read once more."""
    places = [(patch.__module__, patch.__qualname__) for patch in (known, function)]
    return places[0] == places[1]


def apply_patch(
    model: str, module: torch.nn.Module, how: FrameParallel, patch: str = VIT_FRAME_PARALLEL
) -> None:
    """Patch a vision encoder of a registered model; `ValueError` if it has no such patch."""
    if (model, patch) not in _patches:
        known = listed(sorted(name for name, kind in _patches if kind == patch))
        raise ValueError(
            f"Model {model!r} has no patch {patch!r}; models that have it are {known or 'none'}. "
            "Register it with mimokit.engine.frames.register."
        )
    _patches[model, patch](module, how)


def wrap_vit_forward(
    input_dispatch: Callable[..., tuple[Any, Any]],
    orig_forward: Callable[..., Any],
    output_dispatch: Callable[[Any, Any], Any],
) -> Callable[..., Any]:
    """Return a forward that dispatches its inputs and its outputs.

    Args:
        input_dispatch: takes what the forward takes; returns (inputs, context). The inputs are a
            mapping of keyword arguments or a sequence of positional ones, with `self` first where
            the forward has it.
        output_dispatch: (context, what the forward returned) -> what the wrapped one returns.
    """

    @functools.wraps(orig_forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        inputs, context = input_dispatch(*args, **kwargs)
        named = isinstance(inputs, Mapping)
        outputs = orig_forward(**inputs) if named else orig_forward(*inputs)
        return output_dispatch(context, outputs)

    return forward


OF_PATCHES = ("last_hidden_state", "hidden_states")
OF_TOKENS = ("pooler_output", "deepstack_features")
"""Outputs with a row per patch, and with a row per token of merge_size^2 patches."""


@register("qwen2_5_vl")
@register("qwen3_vl")
@register("qwen3_5")
def share_frames(tower: Any, how: FrameParallel) -> None:
    """Patch a vision tower that takes hidden_states and grid_thw and returns a `ModelOutput`.

    Written after version 5.23 of Hugging Face transformers. The attention of these towers is per
    frame: rows of several frames are split along time. The rows of a frame stay together in each
    output; Qwen2.5-VL leaves hidden states in the order of its windows, those of a frame in a row.
    """
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
        count = len(patches)
        if not count:  # the tower cannot run on nothing; the smallest image, whose rows are dropped
            patches = patches.new_zeros(merge**2, *patches.shape[1:])
            grid = grid.new_tensor([[1, merge, merge]])
        return {"hidden_states": patches, "grid_thw": grid, **options}, (context, count)

    def after(state: tuple[FrameContext | None, int], outputs: Any) -> Any:
        context, count = state
        tensors = list(_tensors(outputs))
        scales = [1 if name in OF_PATCHES else merge**2 for name, _, _ in tensors]
        rows = [tensor if count else tensor[:0] for _, _, tensor in tensors]
        back = output_dispatch(context, rows, scales)
        return _replaced(outputs, [(name, n) for name, n, _ in tensors], back)

    tower.forward = wrap_vit_forward(before, forward, after)


def _tensors(outputs: Any) -> Iterator[tuple[str, int | None, torch.Tensor]]:
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
