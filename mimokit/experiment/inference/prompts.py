"""Prompts as rows of token ids, checked against the vocabulary and the positions of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mimokit.config.errors import ConfigError, Problem
from mimokit.units import shown

Rows = tuple[tuple[int, ...], ...]


def checked_prompts(
    token_ids: Any, vocab: int, positions: int, new: int = 0, placeholder: int | None = None
) -> Rows:
    """Return prompts as rows.

    Args:
        token_ids: a row of ids, or rows of any lengths; lists or arrays.
        vocab: ids that there are.
        positions: longest sequence; 0 for any.
        new: tokens that will follow.
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
        for one in row:
            if isinstance(one, bool) or not isinstance(one, int):
                what = f"prompt {number} has {shown(one)}; a token id is a whole number"
                raise _wrong("token_ids", shown(one), what)
            if not 0 <= one < vocab:
                what = f"prompt {number} has the id {one}; ids are 0 to {vocab - 1:,}"
                raise _wrong("token_ids", one, what)
            if one == placeholder:
                what = f"prompt {number} has the id {one}, which represents an image; only the "
                what += "language model generates, and it is given no images, so leave it out"
                raise _wrong("token_ids", one, what)
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
    rows = [one.tolist() if hasattr(one, "tolist") else one for one in token_ids]
    if rows and not any(isinstance(one, list | tuple) for one in rows):
        rows = [rows]
    for number, row in enumerate(rows):
        if not isinstance(row, list | tuple):
            what = f"prompt {number} is {shown(row)}; give a row of token ids"
            raise _wrong("token_ids", shown(row), what)
    return tuple(tuple(row) for row in rows)


def _too_long(number: int, length: int, new: int, positions: int) -> ConfigError:
    what = f"prompt {number} has {length:,} tokens"
    if new and length <= positions:
        most = positions - length
        what += f" and {new:,} shall follow, but the model has {positions:,} positions; "
        what += f"at most {most:,} can follow"
    else:
        what += f", but the model has {positions:,} positions; shorten it"
    return _wrong("token_ids", length, what)


def _wrong(field: str, value: object, what: str) -> ConfigError:
    return ConfigError([Problem("prompts", field, value, f"Prompts: {what}.")])
