"""The vision encoders: patches and positions into Megatron's `TransformerBlock`."""

import math
from dataclasses import replace
from typing import Any

import torch

from mimokit.architecture.tokens import ImageGeometry, image_geometry, rows_of_table
from mimokit.config import ModuleArchitecture
from mimokit.engine import megatron
from mimokit.engine.models.attention import ANY_WINDOW
from mimokit.engine.models.encoder import Encoder, EncoderKind, OuterNorms
from mimokit.engine.models.patches import (
    GRID,
    check_grid,
    cut_patches,
    no_images,
    no_patches,
    token_grids,
)
from mimokit.engine.models.row_head import row_head
from mimokit.engine.models.transformer import StagePart
from mimokit.engine.rotary import RotaryPositions


class VisionTransformer(Encoder):
    """A ViT, optionally with a class token (CLIP, DINO) and registers (DINOv2).

    Class token and registers come before the patches and are dropped at the end, except a class
    token that is kept. The class token has a position embedding, registers have none.

    Args:
        table: rows of the table of learned positions, of which the first are used; 0: positions are
            rotary.
        window: patches along a side of the squares inside which patches attend, in layers with a
            window; 0: none. Class token and registers attend to all, and all to them.
    """

    def __init__(
        self,
        config: megatron.TransformerConfig,
        layer_spec: megatron.ModuleSpec,
        geometry: ImageGeometry,
        table: int,
        interpolated: bool,
        rotary: RotaryPositions,
        patch_bias: bool,
        window: int,
        outer_norms: OuterNorms,
        part: StagePart,
        pg_collection: megatron.ProcessGroupCollection,
    ) -> None:
        super().__init__(config, part)
        self.geometry = geometry
        self._turning, self._window = rotary if interpolated or not table else None, window
        self._learned, self._interpolated = table > 0, interpolated
        if part.first:
            self.patch_embedding = torch.nn.Linear(
                geometry.features, config.hidden_size, bias=patch_bias
            )
            if table:
                self.position_embedding = self._vectors(table)
            if geometry.class_token:
                self.class_token = self._vectors(1)
            if geometry.registers:
                self.registers = self._vectors(geometry.registers)
        self._build_layers(layer_spec, outer_norms, pg_collection)
        self.head = row_head(config, geometry) if part.last else None

    def embed(self, pixel_values: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Images to [positions, images, hidden]; on the first stage.

        Args:
            pixel_values: [images, channels, height, width], or without the channel dimension.

        Raises:
            ValueError: if the images have a different size.
        """
        shape = self.geometry
        expected = (shape.num_channels, shape.height, shape.width)
        given = tuple(pixel_values.shape[1:])
        if given != expected and (1, *given) != expected:
            raise ValueError(
                f"The encoder takes images of {expected} (channels, height, width), not of {given}."
            )
        patches = self.patch_embedding(cut_patches(pixel_values, shape))
        if self._learned:
            patches = patches + self._positions_of_patches()
        return self._with_extra(patches)

    def no_items(self) -> dict[str, torch.Tensor]:
        """Return the inputs of 0 images."""
        return no_images(self.geometry, self._device)

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(self.parameters()).device
        return device

    def _rotary(self, sizes: torch.Tensor | None) -> torch.Tensor | None:
        """Return [positions, 1, 1, width of a head]; class token and registers do not rotate."""
        if self._turning is None:
            return None
        angles = self._angles_of_patches()[:, None]
        return _with_extra_angles(angles, self.geometry.extra_positions)[:, :, None]

    def _windows(self, sizes: torch.Tensor | None) -> torch.Tensor | None:
        if not self._window:
            return None
        return _with_extra_windows(self._squares()[None], self.geometry.extra_positions)

    def _squares(self) -> torch.Tensor:
        """Return the number of the square of each patch of the largest image: [patches].

        Squares begin in the top left corner, as in Qwen2.5-VL (Bai et al. 2025, arXiv 2502.13923).
        """
        squares = self._rows_and_columns() // self._window
        return squares[0] * int(self.geometry.columns) + squares[1]

    def _angles_of_patches(self) -> torch.Tensor:
        """Return the angles of the patches of the largest image: [patches, width of a head].

        Half of the pairs rotate with the row of a patch, half with its column, as in Qwen2-VL
        (Wang et al. 2024, arXiv 2409.12191).
        """
        assert self._turning is not None
        each = self._turning.frequencies(self.config.kv_channels // 2).to(self._device)
        angles = (self._rows_and_columns()[..., None] * each).transpose(0, 1).flatten(1)
        return torch.cat([angles, angles], dim=-1)

    def _rows_and_columns(self) -> torch.Tensor:
        """Return row and column of each patch of the largest image, as `cut_patches` orders them.

        Returns:
            [2, patches], int64.
        """
        shape, merge = self.geometry, self.geometry.merge_size
        places = torch.arange(shape.patches, device=self._device)
        axes = torch.stack([places // shape.columns, places % shape.columns]).reshape(
            2, shape.rows // merge, merge, shape.columns // merge, merge
        )
        return axes.transpose(2, 3).reshape(2, shape.patches)

    def _positions_of_patches(self) -> torch.Tensor:
        """Return [patches of the largest image, hidden]."""
        if self._interpolated:
            return self._interpolated_to(self.geometry.rows, self.geometry.columns)
        first = int(hasattr(self, "class_token"))
        return self.position_embedding[first : first + self.geometry.patches]

    def _interpolated_to(self, rows: int, columns: int) -> torch.Tensor:
        """Return the positions of an image of some rows and columns: [patches, hidden]."""
        table, merge = self.position_embedding, self.geometry.merge_size
        side = math.isqrt(len(table))
        square = table.reshape(side, side, -1).float()  # in bf16 the shares would be rounded
        down, across = (_shares(side, length).to(square.device) for length in (rows, columns))
        grid = torch.einsum("ri,cj,ijh->rch", down, across, square).to(table.dtype)
        cut = grid.reshape(rows // merge, merge, columns // merge, merge, -1)
        return cut.transpose(1, 2).reshape(rows * columns, -1)

    def _with_extra(self, patches: torch.Tensor) -> torch.Tensor:
        """Put class token and registers before patches: [images, patches, hidden] transposed."""
        parts = [patches]
        if hasattr(self, "registers"):
            parts.insert(0, self.registers.expand(len(patches), -1, -1))
        if hasattr(self, "class_token"):
            first: torch.Tensor = self.class_token
            if self._learned and not self._interpolated:
                first = first + self.position_embedding[:1]
            parts.insert(0, first.expand(len(patches), -1, -1))
        return torch.cat(parts, dim=1).transpose(0, 1).contiguous()

    def finish(self, hidden: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """[positions, images, hidden] to [images * tokens, merge_size^2 * hidden].

        What makes one row of an image attends to class token and registers, too.

        Raises:
            ValueError: if the number of tokens of an image in the batch differs.
        """
        if sizes is not None and bool((sizes != self.geometry.tokens).any()):
            raise ValueError(
                f"The batch says that images become {sizes.tolist()} tokens, but the encoder makes "
                f"{self.geometry.tokens} of each."
            )
        if self.head is not None:
            return self.head(hidden)  # type: ignore[no-any-return]
        patches = hidden[self.geometry.extra_positions :]
        if self.geometry.keeps_class_token:
            patches = torch.cat([hidden[:1], patches])
        patches = patches.transpose(0, 1).contiguous()
        return patches.reshape(-1, self.geometry.merge_size**2 * hidden.shape[-1])


def _shares(side: int, length: int) -> torch.Tensor:
    """Return what each of `side` entries has in a linear interpolation to `length`, ends on ends.

    Returns:
        [length, side].
    """
    places = torch.linspace(0, side - 1, length)[:, None]
    return (1 - (places - torch.arange(side)).abs()).clamp(min=0)


def _with_extra_angles(angles: torch.Tensor, extra: int) -> torch.Tensor:
    return torch.nn.functional.pad(angles, (0, 0) * (angles.dim() - 1) + (extra, 0))


def _with_extra_windows(windows: torch.Tensor, extra: int) -> torch.Tensor:
    """Put no window before those of patches: [images, patches]."""
    return torch.nn.functional.pad(windows, (extra, 0), value=ANY_WINDOW)


def _parameters(architecture: ModuleArchitecture) -> dict[str, Any]:
    geometry = image_geometry(architecture)
    window = architecture.window_size or 0
    return {
        "geometry": geometry,
        "table": rows_of_table(architecture),
        "interpolated": architecture.position_embedding_type == "interpolated",
        "rotary": replace(
            RotaryPositions.of(architecture), length=max(geometry.rows, geometry.columns)
        ),
        "patch_bias": architecture.biased_patches,
        "window": math.isqrt(window) if window < geometry.patches else 0,
    }


VISION = EncoderKind(
    name="vit_encoder",
    encoder=VisionTransformer,
    submodules=megatron.VisionModalitySubmodules,
    mask_type=megatron.AttnMaskType.no_mask,
    parameters=_parameters,
    merged=lambda architecture: architecture.merge_size**2,
    sides=lambda before: (-1, -1),
)


class AnySizeVisionTransformer(VisionTransformer):
    """A ViT over images of different sizes; `geometry` is that of the largest.

    The patches of all images are concatenated, with a grid of the rows and columns of each, as in
    Qwen2-VL (Wang et al. 2024, arXiv 2409.12191). The encoder pads images to the largest size.
    Attention masks the padding, and no tokens are made of it. A smaller image has the positions of
    the top left corner of the largest.
    """

    def forward(
        self, tokens_per_item: torch.Tensor | None = None, **inputs: torch.Tensor
    ) -> torch.Tensor:
        """Encode images on a rank that has the whole encoder.

        Returns:
            [tokens of all images, features], images in order.

        Raises:
            ValueError: if the numbers of tokens per item differ from those of the grids.
        """
        grid = inputs[GRID]
        tokens = self.token_grids(grid).prod(1)
        if tokens_per_item is not None and not torch.equal(tokens, tokens_per_item):
            raise ValueError(
                f"The batch says that images become {tokens_per_item.tolist()} tokens, but by "
                f"{GRID} they become {tokens.tolist()}."
            )
        return self.features(self.run_layers(self.embed(**inputs), grid), grid)

    def embed(  # type: ignore[override]
        self, hidden_states: torch.Tensor, grid_thw: torch.Tensor
    ) -> torch.Tensor:
        """Patches to [positions of the largest image, images, hidden]; on the first stage.

        Args:
            hidden_states: [patches of all images, features], in the order of `cut_patches`.
            grid_thw: [images, 3]: frames (1), rows and columns of every image, in patches.
        """
        check_grid(grid_thw, self.geometry, len(hidden_states))
        patches = self.patch_embedding(hidden_states)
        if self._learned:
            patches = patches + self._positions_of_all(grid_thw)
        empty = patches.new_zeros(len(grid_thw), self.geometry.patches, patches.shape[-1])
        return self._with_extra(empty.masked_scatter(self._seen(grid_thw)[..., None], patches))

    def no_items(self) -> dict[str, torch.Tensor]:
        """Return the inputs of 0 images."""
        return no_patches(self.geometry, self._device)

    def finish(self, hidden: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """[positions, images, hidden] to [tokens, merge_size^2 * hidden], without padding."""
        assert sizes is not None
        if self.head is not None:
            return self.head(hidden, self._mask(sizes)[:, 0, 0])  # type: ignore[no-any-return]
        patches = hidden[self.geometry.extra_positions :].transpose(0, 1)[self._seen(sizes)]
        return patches.reshape(-1, self.geometry.merge_size**2 * hidden.shape[-1])

    def token_grids(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return the grid of every image in tokens, from that in patches: [images, 3]."""
        return token_grids(sizes, self.geometry)

    def _mask(self, sizes: torch.Tensor) -> torch.Tensor:
        extra = torch.ones(len(sizes), self.geometry.extra_positions, dtype=torch.bool)
        seen = torch.cat([extra.to(sizes.device), self._seen(sizes)], dim=1)
        return ~seen[:, None, None]

    def _lengths(self, sizes: torch.Tensor | None, items: int) -> list[int]:
        if sizes is None:
            return super()._lengths(sizes, items)
        lengths: list[int] = (sizes.prod(1) + self.geometry.extra_positions).tolist()
        return lengths

    def _seen(self, grid: torch.Tensor) -> torch.Tensor:
        """Return [images, patches of the largest], True where an image has a patch."""
        return torch.arange(self.geometry.patches, device=grid.device) < grid.prod(1)[:, None]

    def _rotary(self, sizes: torch.Tensor | None) -> torch.Tensor | None:
        """Return [positions, images, 1, width of a head]."""
        if self._turning is None or sizes is None:
            return super()._rotary(sizes)
        angles = self._angles_of_patches()
        empty = angles.new_zeros(len(sizes), self.geometry.patches, angles.shape[-1])
        seen, own = self._seen(sizes)[..., None], angles[self._all_places(sizes)]
        of_images = empty.masked_scatter(seen, own).transpose(0, 1)
        return _with_extra_angles(of_images, self.geometry.extra_positions)[:, :, None]

    def _windows(self, sizes: torch.Tensor | None) -> torch.Tensor | None:
        if not self._window or sizes is None:
            return super()._windows(sizes)
        seen, own = self._seen(sizes), self._squares()[self._all_places(sizes)]
        windows = own.new_full(seen.shape, ANY_WINDOW).masked_scatter(seen, own)
        return _with_extra_windows(windows, self.geometry.extra_positions)

    def _positions_of_all(self, grid: torch.Tensor) -> torch.Tensor:
        """Return the learned positions of the patches of all images: [patches, hidden]."""
        if not self._interpolated:
            return self._positions_of_patches()[self._all_places(grid)]
        each = [self._interpolated_to(*sides) for sides in grid[:, 1:].tolist()]
        return torch.cat([self.position_embedding[:0], *each])

    def _all_places(self, grid: torch.Tensor) -> torch.Tensor:
        places = [self._places(*sides) for sides in grid[:, 1:].tolist()]
        return torch.cat([grid.new_zeros(0), *places])

    def _places(self, rows: int, columns: int) -> torch.Tensor:
        """Return the places of an image's patches among those of the largest: [patches]."""
        shape, merge = self.geometry, self.geometry.merge_size
        largest = torch.arange(shape.patches, device=self._device)
        squares = largest.reshape(shape.rows // merge, shape.columns // merge, merge**2)
        return squares[: rows // merge, : columns // merge].flatten()


ANY_SIZE_VISION = replace(
    VISION,
    encoder=AnySizeVisionTransformer,
    mask_type=megatron.AttnMaskType.padding,
    sizes=GRID,
    size_shape=(3,),
)
