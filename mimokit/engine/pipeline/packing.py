"""Where the branches of a micro-batch meet: words and rows of all modalities, laid in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Packed:
    """What a transformer takes.

    Attributes:
        hidden: [tokens, samples, width].
        attention_mask: [1, 1, tokens, tokens], True where nobody may look: causal.
        position_ids: as they came in, or None where places count as they lie (rotary positions).
    """

    hidden: torch.Tensor
    attention_mask: torch.Tensor
    position_ids: torch.Tensor | None = None


def assemble(
    input_ids: torch.Tensor,
    special_token_ids: Mapping[str, int],
    words: torch.Tensor,
    branches: Mapping[str, torch.Tensor],
    position_ids: torch.Tensor | None = None,
) -> Packed:
    """Lay words and rows in their places; every one of them gets its own part of the gradient.

    Args:
        input_ids: [samples, tokens].
        special_token_ids: modality -> the token that holds the place of its rows.
        words: [words, width], embeddings of all other tokens, sample by sample.
        branches: modality -> [rows, width], sample by sample; those that are there.
        position_ids: handed on.

    Raises:
        ValueError: a branch, or the words, have another number of rows than places.
    """
    special = torch.tensor(list(special_token_ids.values()), device=input_ids.device)
    flat = input_ids.flatten()
    # Each copy makes a new tensor, so that autograd sees no place that is written twice.
    hidden = words.new_zeros(len(flat), words.shape[-1])
    hidden = _lay(hidden, ~torch.isin(flat, special), words, "text")
    for name, rows in branches.items():
        hidden = _lay(hidden, flat == special_token_ids[name], rows, name)
    samples, tokens = input_ids.shape
    laid = hidden.reshape(samples, tokens, -1).transpose(0, 1).contiguous()
    return Packed(laid, causal_mask(tokens, laid.device), position_ids)


def _lay(hidden: torch.Tensor, places: torch.Tensor, rows: torch.Tensor, name: str) -> torch.Tensor:
    index = places.nonzero().flatten()
    if len(index) != len(rows):
        raise ValueError(
            f"The batch has {len(index)} places for {name!r} but the branch has {len(rows)} rows; "
            "they must be equal."
        )
    return hidden.index_copy(0, index.to(hidden.device), rows.to(hidden.dtype))


def causal_mask(tokens: int, device: torch.device) -> torch.Tensor:
    """Return [1, 1, tokens, tokens], True where attention is forbidden."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(1)[None, None]


def check_rows(input_ids: torch.Tensor, token: int, name: str, rows: Sequence[int]) -> None:
    """Compare the rows that a module sent with their places, sample by sample.

    Raises:
        ValueError: naming the first sample in which they differ.
    """
    for sample, (wanted, sent) in enumerate(
        zip((input_ids == token).sum(1).tolist(), rows, strict=True)
    ):
        if wanted != sent:
            raise ValueError(
                f"Sample {sample} of the batch has {wanted} {name!r} placeholder tokens "
                f"but module {name!r} sent {sent} rows for it; they must be equal."
            )
