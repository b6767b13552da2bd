"""Frame parallel of vision encoders, also of the user: replicas share a micro-batch's images."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from mimokit.config import ExperimentConfig
from mimokit.engine.device import rank_device
from mimokit.engine.frames import (
    VIT_FRAME_PARALLEL,
    FrameContext,
    FrameParallel,
    apply_patch,
    output_dispatch,
    register,
    wrap_vit_forward,
)
from mimokit.engine.frames.messages import gather_integers
from mimokit.engine.megatron import ProcessGroupCollection
from mimokit.engine.models.patches import GRID
from mimokit.engine.models.rng import computing_other_rows, rows_computed
from mimokit.engine.models.specs import encoder_kind
from mimokit.engine.models.vision import (
    ANY_SIZE_VISION,
    VISION,
    AnySizeVisionTransformer,
    VisionTransformer,
)
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.planning.frames import FrameCost

MODELS = {VISION: "mimokit_vit", ANY_SIZE_VISION: "mimokit_vit_any_size"}
"""Kind of encoder -> its name in the registry of patches."""
SAME_COST = FrameCost(per_patch=0.0, per_frame=1.0)
"""Both pad images to one size, or take only one: every image costs the same."""


def patch_encoders(
    config: ExperimentConfig,
    modules: Mapping[str, ModuleDataParallel],
    groups: Mapping[str, ProcessGroupCollection],
) -> None:
    """Let the replicas of vision encoders share their images, if the config says so."""
    if VIT_FRAME_PARALLEL not in config.runtime.patch_type:
        return
    for name in config.model.encoder_module_names:
        kind = encoder_kind(config.model.get_architecture(name))
        if name in modules and kind in MODELS:
            encoder = modules[name].module.encoders[kind.name]
            apply_patch(MODELS[kind], encoder, FrameParallel(groups[name].dp, SAME_COST))


@register(MODELS[ANY_SIZE_VISION])
def _share_images_of_any_size(encoder: AnySizeVisionTransformer, how: FrameParallel) -> None:
    merge = encoder.geometry.merge_size

    def before(
        tokens_per_item: torch.Tensor | None = None, **inputs: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], FrameContext | None]:
        given, context = how.dispatch(encoder, inputs["hidden_states"], inputs[GRID], merge)
        return dict(zip(("hidden_states", GRID), given, strict=True)), context

    def after(context: FrameContext | None, tokens: torch.Tensor) -> torch.Tensor:
        return output_dispatch(context, [tokens], [merge**2])[0]

    _wrap(encoder, how.group, before, after)


@register(MODELS[VISION])
def _share_images_of_one_size(encoder: VisionTransformer, how: FrameParallel) -> None:
    shape = encoder.geometry
    frame = torch.tensor([[1, shape.rows, shape.columns]])

    def before(
        tokens_per_item: torch.Tensor | None = None, *, pixel_values: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], FrameContext | None]:
        # Which pixels a row has does not matter, as images stay whole.
        images = pixel_values.reshape(
            len(pixel_values) * shape.patches, shape.num_channels * shape.patch_size**2
        )
        grid = frame.expand(len(pixel_values), 3)
        (rows, grid), context = how.dispatch(encoder, images, grid, shape.merge_size)
        size = (len(grid), shape.num_channels, shape.height, shape.width)
        return {"pixel_values": rows.reshape(size)}, context

    def after(context: FrameContext | None, tokens: torch.Tensor) -> torch.Tensor:
        return output_dispatch(context, [tokens], [shape.merge_size**2])[0]

    _wrap(encoder, how.group, before, after)


def _wrap(
    encoder: VisionTransformer,
    group: dist.ProcessGroup,
    before: Callable[..., tuple[dict[str, torch.Tensor], FrameContext | None]],
    after: Callable[[FrameContext | None, torch.Tensor], torch.Tensor],
) -> None:
    encode: Callable[..., torch.Tensor] = encoder.forward

    def given(*args: Any, **named: Any) -> tuple[dict[str, Any], FrameContext | None]:
        inputs, context = before(*args, **named)
        return {"context": context, **inputs}, context

    def dropping(context: FrameContext | None, **inputs: torch.Tensor) -> torch.Tensor:
        with computing_other_rows(pairs=_images_encoded(context)):
            return encode(**inputs)

    drops = encoder.config.hidden_dropout or encoder.config.attention_dropout
    forward = wrap_vit_forward(given, dropping, after) if drops else None
    encoder.forward = forward or wrap_vit_forward(before, encode, after)  # type: ignore[method-assign]
    encoder.shares_items = group.size() > 1


def _images_encoded(context: FrameContext | None) -> Sequence[tuple[int, int]]:
    """Return sample and item of the images that this rank encodes, see `MaskRows`. Collective."""
    rows = rows_computed()
    held = [] if rows is None else rows.pairs
    if context is None or context.routes.all_at_home:
        return held
    counts = [len(context.routes.own(rank)) for rank in range(context.group.size())]
    padded = [*itertools.chain(*held), *[0, 0] * (max(counts) - len(held))]
    gathered = gather_integers(padded, context.group, rank_device())
    pairs = [
        pair
        for integers, count in zip(gathered, counts, strict=True)
        for pair in itertools.islice(zip(integers[::2], integers[1::2], strict=True), count)
    ]
    return [pairs[frame] for frame in context.routes.encodes(context.rank).frames]
