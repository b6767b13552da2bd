"""What networks of weights can run, what their files state of generation, and how to check it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mimokit.architecture.huggingface.families import family_of
from mimokit.architecture.huggingface.fields import Fields
from mimokit.architecture.huggingface.functions import (
    NetworkFunctions,
    functions_of,
    tower_functions_of,
)
from mimokit.architecture.huggingface.llava import image_token
from mimokit.architecture.huggingface.module_weights import module_family
from mimokit.architecture.huggingface.qwen_vision_tensors import QWEN_VISION_TYPES
from mimokit.architecture.huggingface.weight_tensors import GROUPED_TYPES
from mimokit.architecture.modules import MultimodalModel, VisionEncoder
from mimokit.config.errors import refuse_if_any
from mimokit.planning.weights.directory import WeightDirectory, read_json, refused
from mimokit.planning.weights.plan import WeightPlanner
from mimokit.planning.weights.types import DTYPE_BYTES
from mimokit.units import counted, shown

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
    ranks, image = planner.grid.shape[0], placeholder(planner.stored)
    part = -(-vocab // ranks)
    firsts = range(part, ranks * part, part)
    edges = [vocab - 1, 0, *(token for first in firsts for token in (first, first - 1))]
    draw = random.Random(seed)
    left = [token for token in edges if token < vocab and token != image]
    rows = []
    for number in range(batch):
        tokens = max(1, length - number * max(1, length // (2 * batch)))
        first, left = left[:tokens], left[tokens:]
        drawn = (draw.randrange(vocab) for _ in range(tokens - len(first)))
        rows.append((*first, *((token + (token == image)) % vocab for token in drawn)))
    return tuple(rows)


def loading_dtype(planner: WeightPlanner, asked: str | None) -> str:
    """Return the dtype of loading: the one asked for, else the narrowest of the files."""
    if asked is not None:
        return asked
    dtypes = {parameter.dtype for parameter in planner.rank(0).parameters.values()}
    return min(dtypes, key=lambda dtype: (DTYPE_BYTES[dtype], dtype))


LANGUAGE_TYPES = (*GROUPED_TYPES, "gpt2")
"""The values of `model_type` that make logits."""

GENERATION = "generation_config.json"


def runnable_functions(weights: WeightDirectory) -> NetworkFunctions:
    """Return what the network computes between its matrices; of a LLaVA its language model.

    Raises:
        ConfigError: it has what cannot run.
    """
    return _runnable(weights, functions_of(weights.config))


def runnable_tower_functions(weights: WeightDirectory) -> NetworkFunctions:
    """Return the same of the vision tower of a LLaVA."""
    return _runnable(weights, tower_functions_of(weights.config))


def _runnable(weights: WeightDirectory, functions: NetworkFunctions) -> NetworkFunctions:
    refuse_if_any(
        problem
        for field, what in functions.obstacles.items()
        for problem in refused(weights.directory, field, None, what).problems
    )
    return functions


def check_runnable(weights: WeightDirectory) -> None:
    """Raise `ConfigError` if a part of the network has what cannot run."""
    kind = weights.config.get("model_type")
    if kind in QWEN_VISION_TYPES:
        what = (
            f"its model_type is {kind}, whose vision tower runs compute and checks do not; verify "
            "an experiment whose modules start from it"
        )
        raise refused(weights.directory, "model_type", kind, what)
    runnable_functions(weights)
    if weights.is_multimodal:
        runnable_tower_functions(weights)


def check_language(weights: WeightDirectory) -> None:
    """Raise `ConfigError` unless the weights have a language model."""
    kind = weights.config.get("model_type")
    if kind in LANGUAGE_TYPES or weights.is_multimodal:
        return
    right = ", ".join((*LANGUAGE_TYPES, "llava", *QWEN_VISION_TYPES))
    what = f"its model_type is {shown(kind)}, which makes no tokens; those of {right} do"
    raise refused(weights.directory, "model_type", kind, what)


def computed_planner(
    weights: WeightDirectory,
    tensor_parallel: int,
    pipeline_parallel: int = 1,
    dtype: str | None = None,
) -> WeightPlanner:
    """Return the planner of all that makes an output: all but layers for further tokens."""
    family = family_of(weights.config, weights.tensors, further=False)
    return WeightPlanner(weights, tensor_parallel, pipeline_parallel, dtype, family)


def language_planner(
    weights: WeightDirectory, tensor_parallel: int, dtype: str | None = None
) -> WeightPlanner:
    """Return the `computed_planner` of a language model, alone or of a model with an encoder.

    Tensors have the same names in both.

    Raises:
        ConfigError: as `WeightPlanner`, or the weights are those of a tower.
    """
    if weights.is_multimodal:
        return _part_planner(weights, tensor_parallel, dtype, language=True)
    planner = computed_planner(weights, tensor_parallel, dtype=dtype)
    check_language(weights)
    return planner


def part_planners(
    weights: WeightDirectory, tensor_parallel: int, dtype: str | None = None, *, trains: bool
) -> tuple[WeightPlanner, ...]:
    """Return the planner of a language model, and that of a tower that runs in front of it.

    Args:
        trains: with layers that predict further tokens.
    """
    if trains and not weights.is_multimodal:
        return (WeightPlanner(weights, tensor_parallel, dtype=dtype),)
    language = language_planner(weights, tensor_parallel, dtype)
    if not weights.is_multimodal:
        return (language,)
    return language, _part_planner(weights, tensor_parallel, dtype, language=False)


def _part_planner(
    weights: WeightDirectory, tensor_parallel: int, dtype: str | None, *, language: bool
) -> WeightPlanner:
    family = module_family(weights.config, list(weights.tensors), language=language)
    part = weights.limited_to(family.found.tensors)
    return WeightPlanner(part, tensor_parallel, dtype=dtype, family=family)


def check_room_for_image(weights: WeightDirectory, tokens: int, seq_length: int) -> None:
    """Raise `ConfigError` if the tokens of an image leave none for text."""
    if seq_length <= tokens:
        what = (
            f"a sample has {counted(seq_length, 'token')}, and one image becomes {tokens}; give a "
            "--seq-length above that"
        )
        raise refused(weights.directory, "seq_length", seq_length, what)


def placeholder(weights: WeightDirectory) -> int | None:
    """Return the token id that represents an image in prompts; None without a tower."""
    return image_token(Fields(weights.config)) if weights.is_multimodal else None


def stop_tokens(weights: WeightDirectory) -> tuple[int, ...]:
    """Return the `eos_token_id` that the files state: for generation, else of the model.

    Raises:
        ConfigError: it is neither a token id nor a list of them.
    """
    generation = weights.directory / GENERATION
    stated = read_json(generation).get("eos_token_id") if generation.exists() else None
    where = generation if stated is not None else weights.directory / "config.json"
    text = weights.config.get("text_config") if weights.is_multimodal else None
    for section in (weights.config, text):
        if stated is None and isinstance(section, Mapping):
            stated = section.get("eos_token_id")
    if stated is None:
        return ()
    ids: Sequence[object] = stated if isinstance(stated, list) else [stated]
    stop = tuple(token for token in ids if isinstance(token, int) and not isinstance(token, bool))
    if len(stop) < len(ids):
        what = f"its eos_token_id is {shown(stated)}; write a token id or a list of them"
        raise refused(where, "eos_token_id", stated, what)
    return stop
