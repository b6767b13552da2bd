"""Whether the network of a checkpoint can compute, and what its files state about generation."""

from __future__ import annotations

from collections.abc import Sequence

from mimokit.architecture.functions import NetworkFunctions
from mimokit.architecture.huggingface.families import TOWER_TYPES
from mimokit.architecture.huggingface.functions import functions_of
from mimokit.architecture.huggingface.language_tensors import GROUPED_TYPES
from mimokit.config.errors import refuse_if_any
from mimokit.planning.weights.checkpoint import Checkpoint, read_json
from mimokit.planning.weights.headers import refused
from mimokit.units import shown

LANGUAGE_TYPES = (*GROUPED_TYPES, "gpt2")
"""The values of `model_type` that make logits."""

GENERATION = "generation_config.json"


def runnable_functions(checkpoint: Checkpoint) -> NetworkFunctions:
    """Return what the network computes between its matrices.

    Raises:
        ConfigError: it is a network of several parts, or it has what cannot run.
    """
    _check_one_part(checkpoint)
    functions = functions_of(checkpoint.config)
    refuse_if_any(
        problem
        for field, what in functions.obstacles.items()
        for problem in refused(checkpoint.directory, field, None, what).problems
    )
    return functions


def _check_one_part(checkpoint: Checkpoint) -> None:
    """Raise `ConfigError` if the checkpoint is of a network of several parts."""
    kind = checkpoint.config.get("model_type")
    if kind not in (*LANGUAGE_TYPES, *TOWER_TYPES):
        what = (
            f"its model_type is {shown(kind)}, a network of several parts, and one part alone is "
            "checked or generates; make an experiment of it with `mimokit import`, and run or "
            "verify that"
        )
        raise refused(checkpoint.directory, "model_type", kind, what)


def check_language(checkpoint: Checkpoint) -> None:
    """Raise `ConfigError` unless the checkpoint is of a language model."""
    _check_one_part(checkpoint)
    kind = checkpoint.config.get("model_type")
    if kind not in LANGUAGE_TYPES:
        right = ", ".join(LANGUAGE_TYPES)
        what = f"its model_type is {shown(kind)}, which makes no tokens; those of {right} do"
        raise refused(checkpoint.directory, "model_type", kind, what)


def stop_tokens(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Return the `eos_token_id` that the files state: for generation, else of the model.

    Raises:
        ConfigError: it is neither a token id nor a list of them.
    """
    generation = checkpoint.directory / GENERATION
    stated = read_json(generation).get("eos_token_id") if generation.exists() else None
    where = generation if stated is not None else checkpoint.directory / "config.json"
    if stated is None:
        stated = checkpoint.config.get("eos_token_id")
    if stated is None:
        return ()
    ids: Sequence[object] = stated if isinstance(stated, list) else [stated]
    found = tuple(one for one in ids if isinstance(one, int) and not isinstance(one, bool))
    if len(found) < len(ids):
        what = f"its eos_token_id is {shown(stated)}; write a token id or a list of them"
        raise refused(where, "eos_token_id", stated, what)
    return found
