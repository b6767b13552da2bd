"""How an encoder cuts an image into patches, and how many tokens the image becomes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mimokit.config import ModuleArchitecture

DEFAULT_PATCH_SIZE = 4


@dataclass(frozen=True)
class ImageGeometry:
    """An image as an encoder sees it.

    Attributes:
        rows: patches from top to bottom.
        columns: patches from left to right.
        patch_size: pixels per side of a patch.
        num_channels: channels per pixel.
        merge_size: merge_size x merge_size patches become one token.
    """

    rows: int
    columns: int
    patch_size: int
    num_channels: int
    merge_size: int

    @property
    def height(self) -> int:
        """Pixels from top to bottom."""
        return self.rows * self.patch_size

    @property
    def width(self) -> int:
        """Pixels from left to right."""
        return self.columns * self.patch_size

    @property
    def patches(self) -> int:
        """Patches per image: the encoder's sequence length."""
        return self.rows * self.columns

    @property
    def tokens(self) -> int:
        """Tokens per image: what the language model sees."""
        return self.patches // self.merge_size**2


def image_geometry(architecture: ModuleArchitecture) -> ImageGeometry:
    """Return how an encoder's images are cut.

    With an image_size, images are square. Without, an image has `seq_length` patches, in the grid
    nearest to a square whose sides the merge size divides.

    Raises:
        ValueError: if image, patch and merge size do not divide each other.
    """
    patch = architecture.patch_size or DEFAULT_PATCH_SIZE
    merge = architecture.merge_size
    if architecture.image_size is not None:
        if architecture.image_size % (patch * merge):
            raise ValueError(
                f"image_size {architecture.image_size} must be a multiple of patch_size {patch} "
                f"times merge_size {merge}, that is of {patch * merge}."
            )
        rows = columns = architecture.image_size // patch
    else:
        rows, columns = _grid_of(architecture.seq_length, merge)
    return ImageGeometry(rows, columns, patch, architecture.num_channels, merge)


def _grid_of(patches: int, merge: int) -> tuple[int, int]:
    squares = patches // merge**2
    if squares * merge**2 != patches:
        raise ValueError(
            f"seq_length {patches} must be a multiple of merge_size {merge} squared, "
            f"that is of {merge**2}."
        )
    rows = next(r for r in range(math.isqrt(squares), 0, -1) if squares % r == 0)
    return rows * merge, squares // rows * merge


def tokens_per_image(architecture: ModuleArchitecture) -> int:
    """Return the tokens that one image contributes to the language model's sequence.

    Raises:
        ValueError: see `image_geometry`.
    """
    return image_geometry(architecture).tokens
