"""Prompts as rows of token ids, checked against the vocabulary and the positions of a model, and
ids as text where a tokenizer lies next to the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimokit.architecture import longest_sequence, obstacles
from mimokit.config.errors import ConfigError, Problem, refuse_if_any
from mimokit.planning.weights import CONFIG, placeholder, read_mapping, refused
from mimokit.units import counted, shown

if TYPE_CHECKING:
    from mimokit.extras.generation.network.generate import GenerationRequest
    from mimokit.planning.weights import WeightDirectory, WeightPlanner

Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PromptRules:
    """What prompts of a model may have.

    Attributes:
        positions: longest sequence; 0 for any.
        placeholder: the id that represents an image; None where no id does.
        stop: tokens that end a row, by the files.
    """

    vocab: int
    positions: int = 0
    placeholder: int | None = None
    stop: tuple[int, ...] = ()

    @classmethod
    def of(cls, planner: WeightPlanner) -> PromptRules:
        """Return those of weights; raises `ConfigError` if their network cannot run."""
        weights, vocab = planner.stored, planner.family.vocab or 0
        positions = check_network(weights)
        return cls(vocab, positions, placeholder(weights), stop_tokens(weights))

    def request(
        self,
        token_ids: Any,
        max_new_tokens: int,
        how: Mapping[str, Any],
        seed: int = 0,
        stop_tokens: Any = None,
    ) -> GenerationRequest:
        """Return what is asked for; raises `ConfigError` for what means nothing.

        Args:
            how: fields of `Sampling`.
            stop_tokens: ids that end a row; None: those of the files.
        """
        from mimokit.extras.generation.network.generate import GenerationRequest
        from mimokit.extras.generation.network.sampling import Sampling

        check_whole("max_new_tokens", max_new_tokens, least=1)
        rows = self.rows(token_ids, max_new_tokens)
        sampling = Sampling(**how)
        check_whole("seed", seed)
        stop = self.stop if stop_tokens is None else self._stop(stop_tokens)
        numbers = tuple(range(len(rows)))
        return GenerationRequest(rows, numbers, max_new_tokens, sampling, seed, stop)

    def rows(self, token_ids: Any, new: int = 0) -> Rows:
        """Return prompts as rows.

        Args:
            token_ids: a row of ids, or rows of any lengths; lists or arrays.
            new: tokens that shall follow.

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
                self._check_token(number, token)
            if self.positions and len(row) + new > self.positions:
                raise _too_long(number, len(row), new, self.positions)
        return rows

    def _check_token(self, number: int, token: Any) -> None:
        if not _is_whole(token):
            what = f"prompt {number} has {shown(token)}; a token id is a whole number"
            raise _wrong("token_ids", shown(token), what)
        if not 0 <= token < self.vocab:
            what = f"prompt {number} has the id {token}; ids are 0 to {self.vocab - 1:,}"
            raise _wrong("token_ids", token, what)
        if token == self.placeholder:
            what = f"prompt {number} has the id {token}, which represents an image; only the "
            what += "language model generates, and it is given no images, so leave it out"
            raise _wrong("token_ids", token, what)

    def _stop(self, stop_tokens: Any) -> tuple[int, ...]:
        tokens = tuple(stop_tokens) if isinstance(stop_tokens, Sequence) else (stop_tokens,)
        for token in tokens:
            if not _is_whole(token) or not 0 <= token < self.vocab:
                what = f"stop_tokens has {shown(token)}; ids are 0 to {self.vocab - 1:,}"
                raise refused("Options", "stop_tokens", shown(token), what)
        return tokens


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_whole(name: str, value: Any, least: int | None = None) -> None:
    """Raise `ConfigError` unless an option is a whole number."""
    if not _is_whole(value) or (least is not None and value < least):
        right = "a whole number" + ("" if least is None else f" of at least {least}")
        raise refused(
            "Options", name, shown(value), f"{name} is {shown(value)}; it must be {right}"
        )


def _rows(token_ids: Any) -> Rows:
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


def check_network(weights: WeightDirectory) -> int:
    """Return the longest sequence of a language model; raise `ConfigError` if it cannot run."""
    refuse_if_any(
        Problem("weights", field, None, f"{weights.directory}: {what}.")
        for field, what in obstacles(weights.config)
    )
    return longest_sequence(weights.config)


GENERATION = "generation_config.json"


def stop_tokens(weights: WeightDirectory) -> tuple[int, ...]:
    """Return the `eos_token_id` that the files state: for generation, else of the model.

    Raises:
        ConfigError: it is neither a token id nor a list of them.
    """
    generation = weights.directory / GENERATION
    stated = read_mapping(generation).get("eos_token_id") if generation.exists() else None
    where = generation if stated is not None else weights.directory / CONFIG
    text = weights.config.get("text_config") if weights.is_multimodal else None
    for section in (weights.config, text):
        if stated is None and isinstance(section, Mapping):
            stated = section.get("eos_token_id")
    if stated is None:
        return ()
    ids: Sequence[object] = stated if isinstance(stated, list) else [stated]
    stop = tuple(token for token in ids if isinstance(token, int) and _is_whole(token))
    if len(stop) < len(ids):
        what = f"its eos_token_id is {shown(stated)}; write a token id or a list of them"
        raise refused(where, "eos_token_id", stated, what)
    return stop


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
