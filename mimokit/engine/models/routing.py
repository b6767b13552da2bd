"""The samples and positions of the tokens that a router of this rank sees."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mimokit.engine.parallel.context import SequenceCut


@dataclass(frozen=True)
class TokenPlaces:
    """The sample of every token of a router, and its position there: [tokens] int64."""

    samples: torch.Tensor
    positions: torch.Tensor

    def by_sample(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield every sample and the numbers of its tokens."""
        for sample in sorted(set(self.samples.tolist())):
            yield sample, (self.samples == sample).nonzero().flatten()


def places_of_tokens(samples: torch.Tensor, tokens: int, cut: SequenceCut) -> TokenPlaces:
    """Return the places of what a rank has between layers, [tokens, samples] or in a row.

    Args:
        samples: their numbers, [samples] int64, on the CPU.
        tokens: of this rank.
    """
    held = cut.on_rank(torch.arange(tokens * cut.parts))
    if cut.lengths is None:
        return TokenPlaces(samples.repeat(tokens), held.repeat_interleave(len(samples)))
    positions = torch.cat([torch.arange(length) for length in cut.lengths])
    return TokenPlaces(samples.repeat_interleave(torch.tensor(cut.lengths))[held], positions[held])
