"""Positions of three axes, for words and images of different sizes in one sequence.

The rule is that of Qwen2-VL (Wang et al. 2024, arXiv 2409.12191, section 2.1). A word advances all
axes by one. The tokens of an image that begins at position p have the positions p + frame, p + row
and p + column; the next token follows the largest of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

Grid = list[int]
"""Frames, rows and columns of an image, in tokens."""


def merged_grid(grid: torch.Tensor, merge_size: int) -> torch.Tensor:
    """Return the grids of images in tokens rather than patches: [images, 3]."""
    return grid // torch.tensor([1, merge_size, merge_size], device=grid.device)


def three_axis_positions(
    input_ids: torch.Tensor, grids: Mapping[int, torch.Tensor]
) -> torch.Tensor:
    """Return time, height and width of every token: [3, samples, tokens], int64.

    Args:
        input_ids: [samples, tokens].
        grids: placeholder -> [images, 3], frames, rows and columns in tokens, image after image and
            sample after sample. A placeholder that is left out counts like a word.

    Raises:
        ValueError: placeholders and grids do not match.
    """
    coming = {token: iter(grid.tolist()) for token, grid in grids.items()}
    samples = [_positions_of(row, coming, number) for number, row in enumerate(input_ids.tolist())]
    for token, left in coming.items():
        if unused := len(list(left)):
            raise ValueError(f"{unused} images have a grid, but no placeholders {token} are left.")
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
            words = next((n for n, one in enumerate(row[place:]) if one in coming), None)
            further = len(row) - place if words is None else words
            part = torch.arange(further).expand(3, -1)
        parts.append(begin + part)
        place, begin = place + part.shape[1], begin + further
    return torch.cat(parts, dim=1)


def _next_grid(left: Iterator[Grid], row: list[int], sample: int) -> Grid:
    """Return the grid of the first image in a run of placeholders."""
    token, grid = row[0], next(left, None)
    if grid is None:
        raise ValueError(f"Sample {sample} has placeholders {token}, but no grid is left for them.")
    frames, rows, columns = grid
    tokens = frames * rows * columns
    if row[:tokens] != [token] * tokens:
        raise ValueError(
            f"Sample {sample} has an image of {frames} x {rows} x {columns} tokens, but not as "
            f"many placeholders {token} in a row."
        )
    return grid
