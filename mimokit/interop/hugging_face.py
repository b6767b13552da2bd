"""A directory of a LLaVA as an experiment: tower, projector and language model start from it."""

import math
import os
import re
from pathlib import Path

from mimokit.architecture.encoders import VisionEncoder
from mimokit.architecture.huggingface import IMAGES
from mimokit.architecture.huggingface.functions import longest_sequence
from mimokit.architecture.modules import MultimodalModel
from mimokit.architecture.transformer import Transformer
from mimokit.config import ExperimentConfig
from mimokit.config.runtime import DeploymentMode
from mimokit.config.sizes import ParallelSizes
from mimokit.config_files import config_from_mapping
from mimokit.config_files.implications import DEFAULT_SEQ_LENGTH
from mimokit.interop.command_line import wrong_file
from mimokit.interop.size_fields import rank_fields
from mimokit.planning.weights import WeightPlanner, read_directory
from mimokit.planning.weights.generation_planners import check_room_for_image, placeholder
from mimokit.units import shown

LANGUAGE = "language_module"

MOST_TENSOR_PARALLEL = 8
"""Ranks that share a layer at most: those of one NVLink domain."""


def config_of_checkpoint(
    directory: str | os.PathLike[str],
    *,
    mode: DeploymentMode = "homogeneous",
    ranks: int | None = None,
    seq_length: int | None = None,
) -> ExperimentConfig:
    """Return an experiment whose modules start from a LLaVA, with one image in every sample.

    Headers are read, no tensor is.

    Args:
        directory: with the config.json and the .safetensors files of a
            `LlavaForConditionalGeneration`.
        mode: in heterogeneous mode the tower gets the first half of the ranks, the language model
            as many; an odd one is left over.
        ranks: of the layout; None: one, or two in heterogeneous mode. In the modes that give
            modules separate sizes, the language model has tensor parallelism as far as its heads
            and groups allow.
        seq_length: tokens of a sample; None: as many as the model has positions, at most 8,192.

    Raises:
        ConfigError: the directory is of something else, or damaged; the layout is not possible.
    """
    weights = read_directory(directory)
    kind = weights.config.get("model_type")
    where = f"Weights '{directory}'"
    if not weights.is_llava:
        sentence = (
            f"its model_type is {shown(kind)}; only llava becomes an experiment, so name this "
            "directory in the field weights of a module."
        )
        raise wrong_file(where, "model_type", kind, sentence)
    model = WeightPlanner(weights).family.model
    assert isinstance(model, MultimodalModel)
    tower = model.branches[0].computed.encoder
    assert isinstance(tower, VisionEncoder)
    positions = longest_sequence(weights.config) or DEFAULT_SEQ_LENGTH
    length = seq_length or min(positions, DEFAULT_SEQ_LENGTH)
    check_room_for_image(weights, tower.tokens(), length)
    least = 2 if mode == "heterogeneous" else 1
    ranks = least if ranks is None else ranks
    if ranks < least:
        sentence = f"--gpus is {ranks}; a {mode} layout needs at least {least}."
        raise wrong_file(where, "gpus", ranks, sentence)
    sizes = _sizes(mode, ranks, model.language.net)
    path = str(Path(directory).absolute())
    token = placeholder(weights)
    images, words = int(sizes[0].data), int(sizes[1].data)
    first = images if mode == "heterogeneous" else 0
    return config_from_mapping({
        "name": re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(path).name) or "llava",
        "model": {
            "deployment_mode": mode,
            "llm_module_name": LANGUAGE,
            "module_parallelisms": {
                IMAGES: rank_fields(sizes[0]),
                LANGUAGE: {**rank_fields(sizes[1]), "rank_offset": first},
            },
            "module_architectures": {
                IMAGES: {"weights": path},
                LANGUAGE: {"weights": path, "seq_length": length},
            },
            "special_token_ids": {IMAGES: token},
        },
        "data": {
            "base_batch_size": math.lcm(images, words) // words,
            "seq_length": length,
            "image_seq_length": tower.tokens(),
        },
        "runtime": {},
    })  # fmt: skip


def _sizes(
    mode: DeploymentMode, ranks: int, language: Transformer
) -> tuple[ParallelSizes, ParallelSizes]:
    if mode == "homogeneous":
        return ParallelSizes(data=ranks), ParallelSizes(data=ranks)
    each = ranks // 2 if mode == "heterogeneous" else ranks
    tensor = _tensor_parallel(each, language)
    return ParallelSizes(data=each), ParallelSizes(tensor=tensor, data=each // tensor)


def _tensor_parallel(ranks: int, net: Transformer) -> int:
    divided = math.gcd(ranks, net.heads, net.kv_heads, net.ffn)
    return max(size for size in range(1, MOST_TENSOR_PARALLEL + 1) if divided % size == 0)
