"""Whether the network of a checkpoint can compute, and what its files state about generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mimokit.architecture.huggingface.fields import Fields
from mimokit.architecture.huggingface.functions import (
    NetworkFunctions,
    functions_of,
    tower_functions_of,
)
from mimokit.architecture.huggingface.llava import image_token
from mimokit.architecture.huggingface.module_weights import module_family
from mimokit.architecture.huggingface.weight_tensors import GROUPED_TYPES
from mimokit.config.errors import refuse_if_any
from mimokit.planning.weights.directory import WeightDirectory, read_json
from mimokit.planning.weights.headers import refused
from mimokit.planning.weights.plan import WeightPlanner
from mimokit.units import shown

LANGUAGE_TYPES = (*GROUPED_TYPES, "gpt2")
"""The values of `model_type` that make logits."""

GENERATION = "generation_config.json"


def runnable_functions(checkpoint: WeightDirectory) -> NetworkFunctions:
    """Return what the network computes between its matrices; of a LLaVA its language model.

    Raises:
        ConfigError: it has what cannot run.
    """
    return _runnable(checkpoint, functions_of(checkpoint.config))


def runnable_tower_functions(checkpoint: WeightDirectory) -> NetworkFunctions:
    """Return the same of the vision tower of a LLaVA."""
    return _runnable(checkpoint, tower_functions_of(checkpoint.config))


def _runnable(checkpoint: WeightDirectory, functions: NetworkFunctions) -> NetworkFunctions:
    refuse_if_any(
        problem
        for field, what in functions.obstacles.items()
        for problem in refused(checkpoint.directory, field, None, what).problems
    )
    return functions


def check_runnable(checkpoint: WeightDirectory) -> None:
    """Raise `ConfigError` if a part of the network has what cannot run."""
    runnable_functions(checkpoint)
    if checkpoint.is_llava:
        runnable_tower_functions(checkpoint)


def check_language(checkpoint: WeightDirectory) -> None:
    """Raise `ConfigError` unless the checkpoint has a language model."""
    kind = checkpoint.config.get("model_type")
    if kind in LANGUAGE_TYPES or checkpoint.is_llava:
        return
    right = ", ".join((*LANGUAGE_TYPES, "llava"))
    what = f"its model_type is {shown(kind)}, which makes no tokens; those of {right} do"
    raise refused(checkpoint.directory, "model_type", kind, what)


def language_planner(
    checkpoint: WeightDirectory, tensor_parallel: int, dtype: str | None = None
) -> WeightPlanner:
    """Return the planner of a language model, or of that in a LLaVA, under the same names.

    Raises:
        ConfigError: as `WeightPlanner`, or the checkpoint is of a tower.
    """
    if checkpoint.is_llava:
        return _part_planner(checkpoint, tensor_parallel, dtype, language=True)
    planner = WeightPlanner(checkpoint, tensor_parallel, dtype=dtype)
    check_language(checkpoint)
    return planner


def part_planners(
    checkpoint: WeightDirectory, tensor_parallel: int, dtype: str | None = None
) -> tuple[WeightPlanner, ...]:
    """Return the planner of the language model, and of a LLaVA that of what runs in front of it.

    Args:
        tensor_parallel: ranks that share every layer, those of the tower too.

    Raises:
        ConfigError: as `language_planner`.
    """
    language = language_planner(checkpoint, tensor_parallel, dtype)
    if not checkpoint.is_llava:
        return (language,)
    return language, _part_planner(checkpoint, tensor_parallel, dtype, language=False)


def _part_planner(
    checkpoint: WeightDirectory, tensor_parallel: int, dtype: str | None, *, language: bool
) -> WeightPlanner:
    family = module_family(checkpoint.config, list(checkpoint.tensors), language=language)
    part = checkpoint.limited_to(family.found.tensors)
    return WeightPlanner(part, tensor_parallel, dtype=dtype, family=family)


def check_room_for_image(checkpoint: WeightDirectory, tokens: int, seq_length: int) -> None:
    """Raise `ConfigError` if the tokens of an image leave none for text."""
    if seq_length <= tokens:
        what = (
            f"a sample has {seq_length} tokens, and one image becomes {tokens}; give a "
            "--seq-length above that"
        )
        raise refused(checkpoint.directory, "seq_length", seq_length, what)


def placeholder(checkpoint: WeightDirectory) -> int | None:
    """Return the token id that represents an image in the prompts of a LLaVA; None without."""
    return image_token(Fields(checkpoint.config)) if checkpoint.is_llava else None


def stop_tokens(checkpoint: WeightDirectory) -> tuple[int, ...]:
    """Return the `eos_token_id` that the files state: for generation, else of the model.

    Raises:
        ConfigError: it is neither a token id nor a list of them.
    """
    generation = checkpoint.directory / GENERATION
    stated = read_json(generation).get("eos_token_id") if generation.exists() else None
    where = generation if stated is not None else checkpoint.directory / "config.json"
    text = checkpoint.config.get("text_config") if checkpoint.is_llava else None
    for section in (checkpoint.config, text):
        if stated is None and isinstance(section, Mapping):
            stated = section.get("eos_token_id")
    if stated is None:
        return ()
    ids: Sequence[object] = stated if isinstance(stated, list) else [stated]
    found = tuple(one for one in ids if isinstance(one, int) and not isinstance(one, bool))
    if len(found) < len(ids):
        what = f"its eos_token_id is {shown(stated)}; write a token id or a list of them"
        raise refused(where, "eos_token_id", stated, what)
    return found
