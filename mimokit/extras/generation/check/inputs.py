"""What is checked of weights: an experiment whose modules start from them, and its inputs."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mimokit.architecture.encoders import VisionEncoder
from mimokit.architecture.huggingface import ENCODER, IMAGES, LANGUAGE, PROJECTOR
from mimokit.architecture.modules import MultimodalModel
from mimokit.config import ExperimentConfig, ModuleArchitecture, ModuleParallelismConfig
from mimokit.config_files import config_from_mapping
from mimokit.planning.weights import WeightPlanner, placeholder

if TYPE_CHECKING:
    from torch import Tensor

ARITHMETIC: Mapping[str, str] = {
    "float64": "float64", "float32": "float64", "float16": "float32", "bfloat16": "float32"
}  # fmt: skip
"""Dtype of the weights -> dtype in which a check computes, network and oracle alike.

It is a wider one, since the rounding of some layers looks like a wrong shard, and could hide one:
computed in bf16, right shards of a Llama of 24 layers differ from Hugging Face's model in bf16 by
2.4e-2 of the largest entry, and by as much from the same in fp32; of 4 layers by 1.3e-2."""


EMBEDDING, FINAL_NORM, OUTPUT = "embedding", "decoder.final_layernorm", "output_layer"
PROJECTOR_PART = PROJECTOR.removesuffix(".")
"""The parts of a network besides its layers, as checks name them."""


@dataclass(frozen=True)
class CheckInput:
    """What both networks are given.

    Attributes:
        rows: token ids of prompts, all of one length; none for a tower.
        images: batch, channels, rows and columns of images; None for a language model. A LLaVA
            gets both, each for its part.
    """

    rows: tuple[tuple[int, ...], ...] = ()
    images: tuple[int, int, int, int] | None = None
    seed: int = 0

    def ids(self) -> Tensor:
        """Return the rows: [batch, tokens]."""
        import torch

        return torch.tensor(self.rows)

    def pixels(self) -> Tensor:
        """Return the seeded images: [batch, channels, rows, columns]."""
        import torch

        assert self.images is not None
        return torch.randn(self.images, generator=torch.Generator().manual_seed(self.seed))

    def name(self, path: str) -> str:
        """Return the name of a part, without its module in front where there is one module."""
        if self.rows and self.images:
            return path
        return path.removeprefix(ENCODER).removeprefix(LANGUAGE)


def check_input(planner: WeightPlanner, batch: int, length: int, seed: int) -> CheckInput:
    """Return seeded inputs: images, or token ids with the first and last ids of every rank.

    The id that represents an image is not among them.
    """
    tower, vocab = _tower(planner), planner.family.vocab
    image = None if tower is None else tower.images
    size = None if image is None else (batch, image.num_channels, image.height, image.width)
    rows = () if vocab is None else _rows(planner, vocab, batch, length, seed)
    return CheckInput(rows, size, seed)


def _tower(planner: WeightPlanner) -> VisionEncoder | None:
    model = planner.family.model
    tower = model.branches[0].computed.encoder if isinstance(model, MultimodalModel) else model
    return tower if isinstance(tower, VisionEncoder) else None


def _rows(
    planner: WeightPlanner, vocab: int, batch: int, length: int, seed: int
) -> tuple[tuple[int, ...], ...]:
    ranks, image = planner.grid.shape[0], placeholder(planner.stored)
    part = -(-vocab // ranks)
    firsts = range(part, ranks * part, part)
    edges = [vocab - 1, 0, *(token for first in firsts for token in (first, first - 1))]
    draw = random.Random(seed)
    ids = [token for token in edges if token < vocab and token != image][: batch * length]
    ids += (draw.randrange(vocab) for _ in range(batch * length - len(ids)))
    ids = [(token + (token == image)) % vocab for token in ids]
    return tuple(tuple(ids[row * length :][:length]) for row in range(batch))


def config_of_check(planner: WeightPlanner, tensor_parallel: int, length: int) -> ExperimentConfig:
    """Return an experiment whose modules start from weights, on ranks that share every layer.

    A tower alone has a small language model behind it, which no check runs.

    Raises:
        ConfigError: the layout is not possible, or no run can start from the weights.
    """
    tower, vocab = _tower(planner), planner.family.vocab
    start = {"weights": os.path.abspath(planner.stored.directory)}
    networks: dict[str, dict[str, Any]] = {}
    tokens = 0
    if tower is not None:
        networks[IMAGES] = {**start, ModuleArchitecture.one_row.field: tower.images.one_row}
        tokens = tower.tokens()
    words: dict[str, Any] = start | ({"mtp_num_layers": 0} if planner.family.left_out else {})
    if vocab is None:
        words = {
            "num_attention_heads": tensor_parallel, "hidden_size": 8 * tensor_parallel,
            "num_layers": 1, "vocab_size": tensor_parallel,
        }  # fmt: skip
    seq_length = max(length, tokens + 1)
    networks["language_module"] = {**words, "seq_length": seq_length}
    image = placeholder(planner.stored)
    token = image if image is not None else networks["language_module"].get("vocab_size", vocab)
    parallelism = ModuleParallelismConfig(tensor_parallel=tensor_parallel, data_parallel=1)
    sizes = parallelism.model_dump(exclude_unset=True)
    return config_from_mapping({
        "model": {
            "deployment_mode": "homogeneous",
            "module_parallelisms": dict.fromkeys(networks, sizes),
            "module_architectures": networks,
            "special_token_ids": {IMAGES: token} if tower else {},
        },
        "data": {"base_batch_size": 1, "image_seq_length": tokens},
        "runtime": {"num_iterations": 1},
    })  # fmt: skip
