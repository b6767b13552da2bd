"""Images as rows of patches: their order, and the grids that describe them.

A grid (`grid_thw`, as Qwen2-VL calls it) is [images, 3], int64: frames, rows and columns of every
image, in patches. The patches of a square that becomes one token follow each other.
"""

from __future__ import annotations

import torch

from mimokit.architecture.tokens import ImageGeometry

GRID = "grid_thw"
ITEM_TOKENS = "tokens_per_item"
"""What says in a batch how many embeddings each item becomes."""


def cut_patches(images: torch.Tensor, geometry: ImageGeometry) -> torch.Tensor:
    """Cut images [images, (channels,) height, width] to [images, patches, features]."""
    patch, merge, channels = geometry.patch_size, geometry.merge_size, geometry.num_channels
    number, (height, width) = len(images), images.shape[-2:]
    rows, columns = height // patch // merge, width // patch // merge
    cut = images.reshape(number, channels, rows, merge, patch, columns, merge, patch)
    ordered = cut.permute(0, 2, 5, 3, 6, 1, 4, 7)
    return ordered.reshape(number, rows * columns * merge**2, channels * patch**2)


def tokens_of_grid(grid: torch.Tensor, merge_size: int) -> torch.Tensor:
    """Return the number of tokens of every image: [images]."""
    return grid.prod(dim=1) // merge_size**2


def check_grid(grid: torch.Tensor, geometry: ImageGeometry, rows: int) -> None:
    """Reject a grid [images, 3] that an encoder does not accept.

    Raises:
        ValueError: an image has more than one frame, is too large, or has a side that cannot be
            merged (the message names the first), or the grid has another number of patches.
    """
    merge = geometry.merge_size
    most = torch.tensor([1, geometry.rows, geometry.columns], device=grid.device)
    wrong = ((grid < 1) | (grid > most)).any(1) | (grid[:, 1:] % merge != 0).any(1)
    if bool(wrong.any()):
        image = int(wrong.nonzero()[0])
        raise ValueError(
            f"Image {image} has a grid of {grid[image].tolist()} (frames, rows, columns), but the "
            f"encoder takes one frame of up to {geometry.rows} x {geometry.columns} patches, in "
            f"multiples of {merge}."
        )
    described = int(grid.prod(dim=1).sum())
    if described != rows:
        raise ValueError(f"The images have {rows} patches, but {GRID} describes {described}.")
