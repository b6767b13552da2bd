"""Images as rows of patches: their order, their grids, and positions of their tokens in a sequence.

A grid (`grid_thw`, as Qwen2-VL calls it) is [images, 3], int64: frames, rows and columns of every
image, in patches. The patches of a square that becomes one token follow each other.
"""

from collections.abc import Iterator, Mapping

import torch

from mimokit.architecture.tokens import ImageGeometry
from mimokit.units import counted

GRID = "grid_thw"
ITEM_TOKENS = "tokens_per_item"
"""What says in a batch how many embeddings each item becomes."""


def cut_patches(images: torch.Tensor, geometry: ImageGeometry) -> torch.Tensor:
    """Cut images [images, (channels,) height, width] to [images, patches, features].

    The features of a patch are channels x frames x rows x columns, in the order of the weights of a
    `Conv3d`. As in Qwen2-VL's processor, all frames of an image are the image.
    """
    patch, merge, channels = geometry.patch_size, geometry.merge_size, geometry.num_channels
    frames = geometry.frames_per_patch
    number, (height, width) = len(images), images.shape[-2:]
    rows, columns = height // patch // merge, width // patch // merge
    cut = images.reshape(number, channels, rows, merge, patch, columns, merge, patch)
    ordered = cut.permute(0, 2, 5, 3, 6, 1, 4, 7).unsqueeze(6)
    repeated = ordered.expand(*[-1] * 6, frames, -1, -1)
    return repeated.reshape(number, rows * columns * merge**2, geometry.features)


def merged_patches(patches: torch.Tensor, geometry: ImageGeometry) -> torch.Tensor:
    """Return the pixels of every token from the patches of which it is made, of the first frame.

    Args:
        patches: [patches, features], in the order of `cut_patches`.

    Returns:
        [tokens, channels * (merge_size * patch_size)^2], as `cut_patches` orders those of a patch
        as large as a token.
    """
    patch, merge, channels = geometry.patch_size, geometry.merge_size, geometry.num_channels
    frames = geometry.frames_per_patch
    squares = patches.reshape(-1, merge, merge, channels, frames, patch, patch)[:, :, :, :, 0]
    return squares.permute(0, 3, 1, 4, 2, 5).flatten(1)


def no_images(geometry: ImageGeometry, device: torch.device) -> dict[str, torch.Tensor]:
    """Return 0 images of one size, as encoders take them."""
    size = (0, geometry.num_channels, geometry.height, geometry.width)
    return {"pixel_values": torch.zeros(size, device=device)}


def no_patches(geometry: ImageGeometry, device: torch.device) -> dict[str, torch.Tensor]:
    """Return 0 images of any size, as encoders take them."""
    return {
        "hidden_states": torch.zeros(0, geometry.features, device=device),
        GRID: torch.zeros(0, 3, dtype=torch.int64, device=device),
    }


def token_grids(grid: torch.Tensor, geometry: ImageGeometry) -> torch.Tensor:
    """Return the grids of images in tokens, the rows that they become, from those in patches.

    Returns:
        [images, 3]: frames, rows and columns; those of one token where an image becomes one row.
    """
    if geometry.one_row:
        return torch.ones_like(grid)
    merge = geometry.merge_size
    return grid // torch.tensor([1, merge, merge], device=grid.device)


def rows_alone(tokens: torch.Tensor) -> torch.Tensor:
    """Return grids of one frame and one row, for items other than images: [items, 3]."""
    single = torch.ones_like(tokens)
    return torch.stack([single, single, tokens], dim=1)


def tokens_of_grid(grid: torch.Tensor, geometry: ImageGeometry) -> torch.Tensor:
    """Return the number of tokens of every image: [images]."""
    return token_grids(grid, geometry).prod(dim=1)


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
            f"encoder takes one frame of up to {geometry.rows} x "
            f"{counted(geometry.columns, 'patch')}, in multiples of {merge}."
        )
    described = int(grid.prod(dim=1).sum())
    if described != rows:
        raise ValueError(
            f"The images have {counted(rows, 'patch')}, but {GRID} describes {described}."
        )


Grid = list[int]
"""Frames, rows and columns of an image, in tokens."""


def three_axis_positions(
    input_ids: torch.Tensor, grids: Mapping[int, torch.Tensor]
) -> torch.Tensor:
    """Return time, height and width of every token: [3, samples, tokens], int64.

    The rule is that of Qwen2-VL (Wang et al. 2024, arXiv 2409.12191, section 2.1). A word advances
    all axes by one. The tokens of an image that begins at position p have the positions p + frame,
    p + row and p + column; the next token follows the largest of them.

    Args:
        grids: placeholder -> [images, 3], frames, rows and columns in tokens, image after image and
            sample after sample. A placeholder that is left out counts like a word.

    Raises:
        ValueError: placeholders and grids do not match.
    """
    coming = {token: iter(grid.tolist()) for token, grid in grids.items()}
    samples = [_positions_of(row, coming, number) for number, row in enumerate(input_ids.tolist())]
    for token, left in coming.items():
        if unused := len(list(left)):
            raise ValueError(
                f"There are grids of {counted(unused, 'image')}, but no placeholders {token} are "
                "left."
            )
    return torch.stack(samples, dim=1).to(input_ids.device)


def _positions_of(
    row: list[int], coming: Mapping[int, Iterator[Grid]], sample: int
) -> torch.Tensor:
    """Return the positions of one sample: [3, tokens]."""
    parts: list[torch.Tensor] = []
    place = begin = 0
    while place < len(row):
        token = row[place]
        if token in coming:
            grid = _next_grid(coming[token], row[place:], sample)
            part = torch.cartesian_prod(*map(torch.arange, grid)).T
            further = max(grid)
        else:
            words = next((n for n, token in enumerate(row[place:]) if token in coming), None)
            further = len(row) - place if words is None else words
            part = torch.arange(further).expand(3, -1)
        parts.append(begin + part)
        place, begin = place + part.shape[1], begin + further
    return torch.cat(parts, dim=1)


def _next_grid(left: Iterator[Grid], row: list[int], sample: int) -> Grid:
    token, grid = row[0], next(left, None)
    if grid is None:
        raise ValueError(f"Sample {sample} has placeholders {token}, but no grid is left for them.")
    frames, rows, columns = grid
    tokens = frames * rows * columns
    if row[:tokens] != [token] * tokens:
        raise ValueError(
            f"Sample {sample} has an image of {frames} x {rows} x {counted(columns, 'token')}, but "
            f"not as many placeholders {token} in a row."
        )
    return grid
