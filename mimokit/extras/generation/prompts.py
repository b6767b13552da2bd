"""Prompts as rows of token ids, checked against the vocabulary and the positions of a model, and
ids as text where a tokenizer lies next to the weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimokit.architecture.huggingface import functions_of
from mimokit.config.errors import ConfigError, Problem, refuse_if_any
from mimokit.planning.weights import (
    CONFIG,
    language_planner,
    placeholder,
    read_json,
    refused,
    stored_weights,
)
from mimokit.units import counted, shown

if TYPE_CHECKING:
    from mimokit.architecture.huggingface.functions import NetworkFunctions
    from mimokit.planning.weights import WeightDirectory, WeightPlanner

Rows = tuple[tuple[int, ...], ...]


def checked_prompts(
    token_ids: Any, vocab: int, positions: int, new: int = 0, placeholder: int | None = None
) -> Rows:
    """Return prompts as rows.

    Args:
        token_ids: a row of ids, or rows of any lengths; lists or arrays.
        positions: longest sequence; 0 for any.
        placeholder: the id that represents an image; None where no id does.

    Raises:
        ConfigError: a prompt is empty or too long, or an id is not in the vocabulary, or it
            represents an image.
    """
    rows = _rows(token_ids)
    if not rows:
        raise _wrong("token_ids", None, "no prompt is given; write rows of token ids")
    for number, row in enumerate(rows):
        if not row:
            what = f"prompt {number} is empty; give it at least one token id"
            raise _wrong("token_ids", [], what)
        for token in row:
            if isinstance(token, bool) or not isinstance(token, int):
                what = f"prompt {number} has {shown(token)}; a token id is a whole number"
                raise _wrong("token_ids", shown(token), what)
            if not 0 <= token < vocab:
                what = f"prompt {number} has the id {token}; ids are 0 to {vocab - 1:,}"
                raise _wrong("token_ids", token, what)
            if token == placeholder:
                what = f"prompt {number} has the id {token}, which represents an image; only the "
                what += "language model generates, and it is given no images, so leave it out"
                raise _wrong("token_ids", token, what)
        if positions and len(row) + new > positions:
            raise _too_long(number, len(row), new, positions)
    return rows


def _rows(token_ids: Any) -> Rows:
    """Return rows of what may be a row, and of what may be arrays."""
    if hasattr(token_ids, "tolist"):
        token_ids = token_ids.tolist()
    if not isinstance(token_ids, Sequence) or isinstance(token_ids, str | bytes):
        what = f"the prompts are {shown(token_ids)}; give rows of token ids"
        raise _wrong("token_ids", shown(token_ids), what)
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in token_ids]
    if rows and not any(isinstance(row, list | tuple) for row in rows):
        rows = [rows]
    for number, row in enumerate(rows):
        if not isinstance(row, list | tuple):
            what = f"prompt {number} is {shown(row)}; give a row of token ids"
            raise _wrong("token_ids", shown(row), what)
    return tuple(tuple(row) for row in rows)


def _too_long(number: int, length: int, new: int, positions: int) -> ConfigError:
    what = f"prompt {number} has {counted(length, 'token')}"
    if new and length <= positions:
        most = positions - length
        what += f" and {new:,} shall follow, but the model has {counted(positions, 'position')}; "
        what += f"at most {most:,} can follow"
    else:
        what += f", but the model has {counted(positions, 'position')}; shorten it"
    return _wrong("token_ids", length, what)


def _wrong(field: str, value: object, what: str) -> ConfigError:
    return ConfigError([Problem("prompts", field, value, f"Prompts: {what}.")])


TOKENIZER = "tokenizer.json"
"""The file of the `tokenizers` library."""


def decoded(directory: Path, rows: Sequence[Sequence[int]]) -> list[str] | None:
    """Return the text of every row; None without a tokenizer file or its library.

    Raises:
        OSError: the file is damaged.
    """
    file = directory / TOKENIZER
    if not file.is_file() or find_spec("tokenizers") is None:
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare exceptions
        raise OSError(f"{file}: it is not a tokenizer ({error})") from None
    return [str(tokenizer.decode(list(row))) for row in rows]


def check_request(
    directory: str | os.PathLike[str],
    tensor_parallel: int,
    token_ids: Any,
    max_new_tokens: int,
    how: Mapping[str, Any],
    *,
    pipeline_parallel: int = 1,
    replicas: int = 1,
    dtype: str | None = None,
    seed: Any = 0,
    stop_tokens: Any = None,
) -> None:
    """Raise `ConfigError` if `ShardedModel` or its `generate` would; no engine is needed."""
    from mimokit.extras.generation.network.sampling import Sampling

    planner = checked_planner(directory, tensor_parallel, pipeline_parallel, replicas, dtype)
    positions = runnable_functions(planner.stored).positions
    check_count(max_new_tokens)
    check_seed(seed)
    checked_stop_tokens(stop_tokens, planner.family.vocab or 0)
    image = placeholder(planner.stored)
    checked_prompts(token_ids, planner.family.vocab or 0, positions, max_new_tokens, image)
    Sampling(**how)


def checked_planner(
    directory: str | os.PathLike[str], tensor: int, pipeline: int, replicas: int, dtype: str | None
) -> WeightPlanner:
    """Return the planner of weights that can generate in these sizes, or raise ConfigError."""
    if pipeline != 1:
        what = (
            f"pipeline_parallel is {shown(pipeline)}, and generation through a pipeline does not "
            "exist; use tensor_parallel and replicas"
        )
        raise refused("Layout", "pipeline_parallel", pipeline, what)
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        what = f"replicas is {shown(replicas)}; it must be at least 1"
        raise refused("Layout", "replicas", replicas, what)
    return language_planner(stored_weights(directory), tensor, dtype)


def runnable_functions(weights: WeightDirectory) -> NetworkFunctions:
    """Return what a language model computes between its matrices.

    Raises:
        ConfigError: it has what cannot run.
    """
    functions = functions_of(weights.config)
    refuse_if_any(
        Problem("weights", field, None, f"{weights.directory}: {what}.")
        for field, what in functions.obstacles.items()
    )
    return functions


def check_count(value: object) -> None:
    """Raise `ConfigError` unless a number of new tokens is one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        what = f"max_new_tokens is {shown(value)}; it must be a whole number of at least 1"
        raise refused("Options", "max_new_tokens", value, what)


def check_seed(value: object) -> None:
    """Raise `ConfigError` unless a seed of draws is one."""
    if isinstance(value, bool) or not isinstance(value, int):
        what = f"seed is {shown(value)}; it must be a whole number"
        raise refused("Options", "seed", shown(value), what)


def checked_stop_tokens(stop_tokens: Any, vocab: int) -> tuple[int, ...]:
    """Return the token ids that end a row; raises `ConfigError` if one is none of the vocabulary.

    Args:
        stop_tokens: a sequence of ids; None for none.
    """
    if stop_tokens is None:
        return ()
    tokens = tuple(stop_tokens) if isinstance(stop_tokens, Sequence) else (stop_tokens,)
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
            what = f"stop_tokens has {shown(token)}; ids are 0 to {vocab - 1:,}"
            raise refused("Options", "stop_tokens", shown(token), what)
    return tokens


GENERATION = "generation_config.json"


def stop_tokens(weights: WeightDirectory) -> tuple[int, ...]:
    """Return the `eos_token_id` that the files state: for generation, else of the model.

    Raises:
        ConfigError: it is neither a token id nor a list of them.
    """
    generation = weights.directory / GENERATION
    stated = read_json(generation).get("eos_token_id") if generation.exists() else None
    where = generation if stated is not None else weights.directory / CONFIG
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
