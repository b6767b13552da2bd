"""Frame parallel of vision encoders, also of the user: replicas share a micro-batch's images."""

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from mimokit.config import ExperimentSections
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
from mimokit.engine.models.chunks import chunks_of
from mimokit.engine.models.encoder import SharedItems
from mimokit.engine.models.patches import GRID
from mimokit.engine.models.rng import computing_other_rows, rows_computed
from mimokit.engine.models.specs import encoder_kind
from mimokit.engine.models.transformer import WHOLE
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
    config: ExperimentSections,
    modules: Mapping[str, ModuleDataParallel],
    groups: Mapping[str, ProcessGroupCollection],
) -> None:
    """Let the replicas of vision encoders share their images, if the config says so."""
    if VIT_FRAME_PARALLEL not in config.runtime.patch_type:
        return
    for name in config.model.encoder_module_names:
        kind = encoder_kind(config.model.get_architecture(name))
        if name in modules and kind in MODELS:
            for chunk in chunks_of(modules[name].module):
                how = FrameParallel(groups[name].dp, SAME_COST)
                apply_patch(MODELS[kind], chunk.encoders[kind.name], how)


class _Images(SharedItems):
    """How the replicas of a vision encoder share its images.

    A pipeline stage behind the first, which has hidden states only, finds out what its replicas
    encode from the images of their samples, as the first has.
    """

    def __init__(self, encoder: VisionTransformer, how: FrameParallel) -> None:
        self._encoder, self._how, self._shape = encoder, how, encoder.geometry
        config = encoder.config
        self._names_images = bool(
            config.hidden_dropout or config.attention_dropout or config.num_moe_experts
        )

    def follow(self, images: int, sizes: torch.Tensor | None) -> FrameContext | None:
        """Return what `dispatch` has found on the first stage. Collective."""
        grid = self._grids(images, sizes)
        patches = grid.new_zeros(int(grid.prod(1).sum()), 0, dtype=torch.float32)
        return self._dispatch(patches, grid)[1]

    def sizes(self, context: FrameContext | None) -> torch.Tensor | None:
        return None

    def computing(self, context: FrameContext | None) -> AbstractContextManager[None]:
        """Run a block in which masks are drawn, and experts chosen, for the images that this rank
        encodes. Collective where there are any.
        """
        if not self._names_images:
            return contextlib.nullcontext()
        return computing_other_rows(pairs=_images_encoded(context))

    def wrap(self) -> None:
        encode: Callable[..., torch.Tensor] = self._encoder.forward

        def before(
            tokens_per_item: torch.Tensor | None = None, **inputs: torch.Tensor
        ) -> tuple[dict[str, Any], FrameContext | None]:
            given, context = self.dispatch(**inputs)
            return {"context": context, **given}, context

        def computed(context: FrameContext | None, **inputs: torch.Tensor) -> torch.Tensor:
            with self.computing(context):
                return encode(**inputs)

        forward = wrap_vit_forward(before, computed, self.give_back)
        self._encoder.forward = forward  # type: ignore[method-assign]

    def _grids(self, images: int, sizes: torch.Tensor | None) -> torch.Tensor:
        """Return [images, 3] of those of this rank's samples."""
        return torch.tensor([[1, self._shape.rows, self._shape.columns]]).expand(images, 3)

    def _dispatch(
        self, patches: torch.Tensor, grid: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], FrameContext | None]:
        return self._how.dispatch(self._encoder, patches, grid, self._shape.merge_size)


class _ImagesOfAnySize(_Images):
    def dispatch(  # type: ignore[override]
        self, hidden_states: torch.Tensor, grid_thw: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], FrameContext | None]:
        given, context = self._dispatch(hidden_states, grid_thw)
        return dict(zip(("hidden_states", GRID), given, strict=True)), context

    def give_back(self, context: FrameContext | None, tokens: torch.Tensor) -> torch.Tensor:
        if self._shape.one_row:
            return output_dispatch(_one_row_each(context), [tokens], [1])[0]
        return output_dispatch(context, [tokens], [self._shape.merge_size**2])[0]

    def sizes(self, context: FrameContext | None) -> torch.Tensor | None:
        if context is None:
            return None
        grid = context.routes.grid[context.routes.encodes(context.rank).frames]
        return torch.as_tensor(grid, device=rank_device())

    def _grids(self, images: int, sizes: torch.Tensor | None) -> torch.Tensor:
        assert sizes is not None
        return sizes


class _ImagesOfOneSize(_Images):
    def dispatch(  # type: ignore[override]
        self, pixel_values: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], FrameContext | None]:
        shape, number = self._shape, len(pixel_values)
        # Which pixels a row has does not matter, as images stay whole.
        width = shape.num_channels * shape.patch_size**2
        images = pixel_values.reshape(number * shape.patches, width)
        (rows, grid), context = self._dispatch(images, self._grids(number, None))
        size = (len(grid), shape.num_channels, shape.height, shape.width)
        return {"pixel_values": rows.reshape(size)}, context

    def give_back(self, context: FrameContext | None, tokens: torch.Tensor) -> torch.Tensor:
        images = tokens.reshape(-1, self._shape.tokens * tokens.shape[-1])
        own = output_dispatch(_one_row_each(context), [images], [1])[0]
        return own.reshape(-1, tokens.shape[-1])


def _one_row_each(context: FrameContext | None) -> FrameContext | None:
    return None if context is None else replace(context, routes=context.routes.of_rows())


@register(MODELS[ANY_SIZE_VISION])
def _share_images_of_any_size(encoder: AnySizeVisionTransformer, how: FrameParallel) -> None:
    _share(encoder, how.group, _ImagesOfAnySize(encoder, how))


@register(MODELS[VISION])
def _share_images_of_one_size(encoder: VisionTransformer, how: FrameParallel) -> None:
    _share(encoder, how.group, _ImagesOfOneSize(encoder, how))


def _share(encoder: VisionTransformer, group: dist.ProcessGroup, images: _Images) -> None:
    encoder.shares_items = group.size() > 1
    if encoder.part == WHOLE:
        images.wrap()
    elif encoder.shares_items:
        encoder.shared = images


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
