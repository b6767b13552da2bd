"""Samples of a micro-batch in a row, one after another, without the padding between them.

No sample attends to another. A sample keeps as much of its padding as ranks need to share it
evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mimokit.engine.megatron import PackedSeqParams


def bounds_of(lengths: Sequence[int]) -> torch.Tensor:
    """Return where every sample begins, and where the last one ends: [samples + 1], int64."""
    return F.pad(torch.tensor(lengths).cumsum(0), (1, 0))


class _OneRank:
    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


_ONE_RANK = _OneRank()


@dataclass(frozen=True)
class SampleRow:
    """Samples in a row.

    Attributes:
        lengths: of the samples in it, with the padding that they keep.
    """

    lengths: tuple[int, ...]

    @classmethod
    def of(cls, lengths: list[int], divisor: int) -> SampleRow:
        """Return a row in which the divisor divides the length of every sample."""
        return cls(tuple(-(-length // divisor) * divisor for length in lengths))

    @property
    def bounds(self) -> torch.Tensor:
        """The first place of every sample, and the end of the row: [samples + 1], int64."""
        return bounds_of(self.lengths)

    @property
    def positions(self) -> torch.Tensor:
        """The position of every place of the row in its sample."""
        return torch.cat([torch.arange(length) for length in self.lengths])

    @property
    def samples(self) -> torch.Tensor:
        """The index of the sample at every place of the row."""
        return torch.repeat_interleave(torch.tensor(self.lengths))

    def lay(self, values: torch.Tensor) -> torch.Tensor:
        """Put [samples, tokens, …] in a row, [places, …]; missing padding is 0."""
        values = self._with_padding(values)
        return torch.cat([own[:length] for own, length in zip(values, self.lengths, strict=True)])

    def lengthened(self, rows: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """Return [places, …] of samples of these lengths one after another, [rows, …]."""
        parts = zip(torch.split(rows, lengths), self.lengths, strict=True)
        return torch.cat([F.pad(own, _behind(own.dim(), most - len(own))) for own, most in parts])

    def take_apart(self, row: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return [samples, tokens, …] of a row, 0 where it has no place."""
        most = max(tokens, *self.lengths)
        parts = torch.split(row, list(self.lengths))
        padded = [F.pad(part, _behind(part.dim(), most - len(part))) for part in parts]
        return torch.stack(padded)[:, :tokens]

    def _with_padding(self, values: torch.Tensor) -> torch.Tensor:
        missing = max(self.lengths) - values.shape[1]
        return F.pad(values, _behind(values.dim() - 1, missing)) if missing > 0 else values

    def params(self, device: torch.device) -> PackedSeqParams:
        """Return what Megatron's layers take of it."""
        bounds, longest = self.bounds.to(device, torch.int32), max(self.lengths)
        return PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=bounds,
            cu_seqlens_kv=bounds,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
            # Positions of three axes are those of the whole row, which Megatron cuts per sample
            # later; it would cut them here as well.
            cp_group=_ONE_RANK,
        )


def _behind(dimensions: int, places: int) -> list[int]:
    """Return the padding behind the first of some dimensions, as torch takes it."""
    return [0, 0] * (dimensions - 1) + [0, places]
