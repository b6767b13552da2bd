"""What a check of a layout's weights is run on, and how exact it must be."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from mimokit.architecture.modules import MultimodalModel, VisionEncoder
from mimokit.planning.weights.directory import refused
from mimokit.planning.weights.plan import WeightPlanner
from mimokit.planning.weights.running import placeholder
from mimokit.planning.weights.types import DTYPE_BYTES

TOLERANCES: Mapping[str, float] = {
    "float64": 1e-5, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2
}  # fmt: skip
"""Dtype of the weights -> largest difference that passes, relative to the largest entry."""

ARITHMETIC: Mapping[str, str] = {
    "float64": "float64", "float32": "float64", "float16": "float32", "bfloat16": "float32"
}  # fmt: skip
"""Dtype of the weights -> dtype in which a check computes, layout and oracle alike.

It is a wider one, since the rounding of some layers looks like a wrong shard, and could hide one:
computed in bf16, right shards of a Llama of 24 layers differ from Hugging Face's model in bf16 by
2.4e-2 of the largest entry, and by as much from the same in fp32; of 4 layers by 1.3e-2. In fp32
they differ by less than 1e-5."""

ROUNDING = 1e-4
"""Relative difference that the rounding of `ARITHMETIC` does not explain, whatever the dtype of the
weights tolerates."""

EMBEDDING = "embedding"
OUTPUT = "output_layer"
"""The parts of a network before and after its layers, as checks name them."""


@dataclass(frozen=True)
class CheckInput:
    """What both networks are given.

    Attributes:
        rows: token ids of prompts of different lengths; none for a tower.
        images: batch, channels, rows and columns of images; None for a language model. A LLaVA
            gets both, each for its part.
    """

    rows: tuple[tuple[int, ...], ...] = ()
    images: tuple[int, int, int, int] | None = None
    seed: int = 0


def check_input(planner: WeightPlanner, batch: int, length: int, seed: int) -> CheckInput:
    """Return seeded inputs: images, or token ids with the first and last ids of every rank.

    The id that represents an image is not among them.

    Args:
        length: tokens of the longest row; that of the positions at most.

    Raises:
        ConfigError: a number is below 1.
    """
    for name, value in (("batch", batch), ("length", length)):
        if value < 1:
            raise refused("Options", name, value, f"{name} is {value}; it must be at least 1")
    model, images, vocab = planner.family.model, None, planner.family.vocab
    tower = model.branches[0].encoder if isinstance(model, MultimodalModel) else model
    if isinstance(tower, VisionEncoder):
        images = (batch, tower.channels, tower.image_size, tower.image_size)
    rows = () if vocab is None else _rows(planner, vocab, batch, length, seed)
    return CheckInput(rows, images, seed)


def _rows(
    planner: WeightPlanner, vocab: int, batch: int, length: int, seed: int
) -> tuple[tuple[int, ...], ...]:
    ranks, image = planner.grid.shape[0], placeholder(planner.checkpoint)
    part = -(-vocab // ranks)
    edges = [
        vocab - 1,
        0,
        *(one for rank in range(1, ranks) for one in (rank * part, rank * part - 1)),
    ]
    draw = random.Random(seed)
    left = [one for one in edges if one < vocab and one != image]
    rows = []
    for number in range(batch):
        tokens = max(1, length - number * max(1, length // (2 * batch)))
        first, left = left[:tokens], left[tokens:]
        drawn = (draw.randrange(vocab) for _ in range(tokens - len(first)))
        rows.append((*first, *((one + (one == image)) % vocab for one in drawn)))
    return tuple(rows)


def loading_dtype(planner: WeightPlanner, asked: str | None) -> str:
    """Return the dtype of loading: the one asked for, else the narrowest of the files."""
    if asked is not None:
        return asked
    found = {one.dtype for one in planner.rank(0).parameters.values()}
    return min(found, key=lambda dtype: (DTYPE_BYTES[dtype], dtype))
