"""Packing: puts words and the rows of all modalities into the order of the tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mimokit.engine.models.transformer import causal_mask
from mimokit.engine.ragged import Ragged, items_of, samples_of
from mimokit.units import counted


@dataclass(frozen=True)
class Packed:
    """The inputs of a transformer.

    Attributes:
        hidden: [tokens, samples, width].
        attention_mask: [1, 1, tokens, tokens], causal: True where attention is forbidden; None
            where samples are in a row.
        position_ids: [3, samples, tokens], or None for the order of the tokens.
    """

    hidden: torch.Tensor
    attention_mask: torch.Tensor | None
    position_ids: torch.Tensor | None = None


def assemble(
    input_ids: torch.Tensor,
    special_token_ids: Mapping[str, int],
    words: torch.Tensor,
    branches: Mapping[str, torch.Tensor],
    position_ids: torch.Tensor | None = None,
) -> Packed:
    """Put words and rows in their places; each receives its part of the gradient.

    Args:
        input_ids: [samples, tokens].
        special_token_ids: modality -> its placeholder token id.
        words: [words, width], embeddings of all other tokens, sample by sample.
        branches: modality -> [rows, width], sample by sample, for the modalities that are present;
            some may be wider than others, of which the rest is 0.

    Raises:
        ValueError: the number of rows of a branch, or of words, differs from its places.
    """
    special = torch.tensor(list(special_token_ids.values()), device=input_ids.device)
    flat = input_ids.flatten()
    # Each copy returns a new tensor, so that autograd sees no in-place write.
    width = max(rows.shape[-1] for rows in (words, *branches.values()))
    hidden = words.new_zeros(len(flat), width)
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
            f"The batch has {counted(len(index), 'place')} for {name!r} but the branch has "
            f"{counted(len(rows), 'row')}; they must be equal."
        )
    wide = torch.nn.functional.pad(rows, (0, hidden.shape[-1] - rows.shape[-1]))
    return hidden.index_copy(0, index.to(hidden.device), wide.to(hidden.dtype))


def checked_grids(sent: Ragged, name: str) -> torch.Tensor:
    """Return the grids in tokens of the images that a module sent, which its rows fit.

    Returns:
        [images, 3]: frames, rows and columns of every image.

    Raises:
        ValueError: the number of grids differs from that of images, or the images of a sample
            become another number of rows; the message names the first such sample.
    """
    grids, items, rows = sent.sizes, items_of(sent), samples_of(sent)
    assert grids is not None
    if len(grids) != sum(items):
        raise ValueError(
            f"Module {name!r} sent {len(grids)} grids for {counted(sum(items), 'image')}."
        )
    tokens: list[int] = grids.prod(dim=1).tolist()
    for sample, (count, of_sample) in enumerate(zip(items, rows, strict=True)):
        becoming, tokens = sum(tokens[:count]), tokens[count:]
        if becoming != of_sample:
            raise ValueError(
                f"Module {name!r} sent {counted(of_sample, 'row')} for sample {sample}, but "
                f"{becoming} are those of the grids of its {counted(count, 'image')}; they must "
                "be equal."
            )
    return grids


def check_rows(input_ids: torch.Tensor, token: int, name: str, rows: Sequence[int]) -> None:
    """Compare the rows that a module sent with its placeholders, sample by sample.

    Raises:
        ValueError: they differ; the message names the first such sample.
    """
    for sample, (wanted, sent) in enumerate(
        zip((input_ids == token).sum(1).tolist(), rows, strict=True)
    ):
        if wanted != sent:
            raise ValueError(
                f"Sample {sample} of the batch has {wanted} {name!r} placeholder tokens "
                f"but module {name!r} sent {counted(sent, 'row')} for it; they must be equal."
            )
