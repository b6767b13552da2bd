"""Patches of models by name: who wants frame parallel in another model registers it here,
and puts dispatch around the forward of its encoder."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from mimokit.engine.frames.dispatch import FrameContext, input_dispatch
from mimokit.planning.frames import PATCHES, FrameCost, FrameSettings
from mimokit.units import listed

VIT_FRAME_PARALLEL = "vit_frame_parallel"


@dataclass(frozen=True)
class FrameParallel:
    """How the ranks of a group share the frames of a vision encoder.

    Attributes:
        group: the ranks; for a model in data parallel its group.
        tolerance: see `plan_frames`.
        max_moved: see `plan_frames`.
        ranks_per_node: see `plan_frames`.
        held: see `input_dispatch`.
        equal_gradients: see `input_dispatch`.
    """

    group: dist.ProcessGroup
    cost: FrameCost = PATCHES
    tolerance: float = 0.01
    max_moved: float | None = None
    ranks_per_node: int | None = None
    held: int | None = None
    equal_gradients: bool = False

    @classmethod
    def with_copies(
        cls,
        group: dist.ProcessGroup,
        copies: dist.ProcessGroup,
        *,
        equal_gradients: bool = False,
        **settings: Any,
    ) -> FrameParallel:
        """Return how ranks that hold the same frames encode a share each and gather the results.

        Without it, every context-parallel rank of a language model, or every tensor-parallel rank
        of a small encoder, encodes all frames of its samples.

        Args:
            group: the ranks that share the work: `copies` itself, or data parallel x copies.
            copies: the ranks of the group that hold the same frames as this one.
            equal_gradients: see `input_dispatch`: True for tensor-parallel ranks.

        Raises:
            ValueError: the group does not contain the copies.
        """
        members, same = (dist.get_process_group_ranks(one) for one in (group, copies))
        if outside := sorted(set(same) - set(members)):
            raise ValueError(
                f"Rank {outside[0]} holds the same frames, but is not in the group that shares "
                f"them, ranks {listed(list(map(str, members)))}; give a group that contains all "
                "copies."
            )
        return cls(group, held=min(same), equal_gradients=equal_gradients, **settings)

    def dispatch(
        self,
        module: torch.nn.Module,
        hidden_states: torch.Tensor,
        grid_thw: torch.Tensor,
        merge_size: int,
        split_time: bool = True,
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], FrameContext | None]:
        """Dispatch the inputs of an encoder; see `input_dispatch`. Collective.

        Args:
            merge_size: it makes one token of merge_size^2 patches.
            split_time: its attention is per frame.
        """
        return input_dispatch(
            hidden_states,
            grid_thw,
            group=self.group,
            settings=FrameSettings(
                merge_size,
                self.cost,
                split_time,
                self.tolerance,
                self.max_moved,
                self.ranks_per_node,
            ),
            trained=any(parameter.requires_grad for parameter in module.parameters()),
            held=self.held,
            equal_gradients=self.equal_gradients,
        )


Patch: TypeAlias = Callable[[Any, FrameParallel], None]
"""Changes the forward of a module, the encoder itself."""

_patches: dict[tuple[str, str], Patch] = {}


def register(model: str, patch: str = VIT_FRAME_PARALLEL) -> Callable[[Patch], Patch]:
    """Register a function as the patch of a model.

    It takes the vision encoder and how to share its frames, and puts `wrap_vit_forward` around the
    forward of the encoder.

    Raises:
        ValueError: the model has such a patch.
    """

    def take(function: Patch) -> Patch:
        if _patches.setdefault((model, patch), function) is not function:
            raise ValueError(f"Model {model!r} has a patch {patch!r} already.")
        return function

    return take


def apply_patch(
    model: str, module: torch.nn.Module, how: FrameParallel, patch: str = VIT_FRAME_PARALLEL
) -> None:
    """Patch a vision encoder of a registered model.

    Raises:
        ValueError: the model has no such patch.
    """
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
