"""Numbers that a codec rounds, and that are halfway between two multiples but for rounding errors.

A layout may round such a number to the other multiple than one process does, and is as right. It
differs from one process by a whole step of the scale then, and in everything that follows. So a
rank that is checked takes the multiple of the oracle where it is next to its own, and where its own
number lies between both but for the rounding errors that `verify` tolerates. All other numbers stay
what the rank rounds them to, and so are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from mimokit.engine.models.weights import named_parameters
from mimokit.engine.parallel.marks import shard_of
from mimokit.engine.strategies.codecs import LowBitMean, Rounding, nearest
from mimokit.engine.training.loop import TrainingState
from mimokit.engine.verify.oracle import OracleStep
from mimokit.engine.verify.strategies.pieces import ROUNDING, SUMS
from mimokit.planning.strategies.sizes import CODEC_BLOCK


@dataclass
class Rounded:
    """The numbers that a codec rounded on a rank in a step.

    Attributes:
        taken: those of them that became what the oracle rounded them to.
    """

    numbers: int = 0
    taken: int = 0


@contextmanager
def halfway_taken(state: TrainingState, expected: OracleStep) -> Iterator[Rounded]:
    """Take the oracle's multiples in a step, which the block does."""
    rounded = Rounded()
    if state.exchange is None or not expected.whole_numbers:
        yield rounded
        return
    parts = [
        (part.low_bits, AsOracle(part.low_bits, part.inner, there, rounded))
        for names, part in state.exchange.in_low_bits()
        if part.low_bits is not None
        for there in [_on_this_rank(state, expected, names)]
        if there
    ]
    for low_bits, halfway in parts:
        low_bits.rounding = halfway
    yield rounded
    for low_bits, _ in parts:
        low_bits.rounding = Rounding()


def _on_this_rank(
    state: TrainingState, expected: OracleStep, names: Sequence[str]
) -> list[tuple[Tensor, Tensor]]:
    """Return what the oracle rounded the shards of this rank to, flat; nothing if it did not."""
    rounded: dict[str, tuple[Tensor, Tensor]] = {}
    for module, wrapped in state.model.modules().items():
        for path, parameter in named_parameters(wrapped.module).items():
            name, shape = f"{module}.{path}", expected.weights[module][path].shape
            if name in expected.whole_numbers:
                change, sums = (
                    torch.from_numpy(shard_of(parameter).of(numbers.reshape(shape)).flatten())
                    for numbers in expected.whole_numbers[name]
                )
                rounded[name] = (change, sums)
    return [rounded[name] for name in names if name in rounded]


class AsOracle(Rounding):
    """Rounds as the oracle does where a number is halfway between two multiples."""

    def __init__(
        self,
        low_bits: LowBitMean,
        inner: Sequence[Tensor],
        there: Sequence[tuple[Tensor, Tensor]],
        rounded: Rounded,
    ) -> None:
        """Take the weights whose change is averaged, and the change and mean of the oracle of each.

        Those of the oracle are whole numbers, flat.
        """
        self._rounded = rounded
        device = inner[0].device
        change, sums = (torch.cat(of).to(device, torch.float32) for of in zip(*there, strict=True))
        weights = torch.cat([one.detach().abs().flatten() for one in inner]).float()
        # Of which tensor each number is.
        tensors = torch.cat([torch.full_like(one.flatten(), k) for k, one in enumerate(inner)])
        self._change, self._sums, self._weights, numbers = (
            low_bits.in_blocks(flat, low_bits.length).view(-1, CODEC_BLOCK)
            for flat in (change, sums, weights, tensors.float())
        )
        self._tensor = numbers.amax(dim=1).long()

    def of_own(self, multiples: Tensor, scales: Tensor) -> Tensor:
        """Round the change on this rank."""
        return self._nearest(0, self._change, multiples, scales)

    def of_sums(self, first: int, multiples: Tensor, scales: Tensor) -> Tensor:
        """Round the part of the mean that this rank makes, from which block on."""
        return self._nearest(first, self._sums, multiples, scales)

    def _nearest(self, first: int, whole: Tensor, multiples: Tensor, scales: Tensor) -> Tensor:
        local = nearest(multiples, scales)
        # Blocks behind the last tensor are padding.
        real = max(0, min(len(local), len(whole) - first))
        rows, blocks = slice(0, real), slice(first, first + real)
        oracle = torch.zeros_like(local)
        oracle[rows] = whole[blocks]
        errors = torch.zeros_like(local)
        errors[rows] = self._errors(blocks, multiples[rows] * scales[rows])
        steps = errors / scales.where(scales > 0, 1)
        next_to = ((local - oracle).abs() == 1) & (scales > 0)
        take = next_to & ((multiples - oracle).abs() <= 0.5 + steps)
        self._rounded.numbers += whole[blocks].numel()
        self._rounded.taken += int(take.sum())
        return oracle.where(take, local)

    def _errors(self, blocks: slice, numbers: Tensor) -> Tensor:
        """Return by how much each number may differ from that of the oracle."""
        tensor = self._tensor[blocks]
        most = torch.zeros(int(self._tensor.max()) + 1, device=numbers.device)
        most.scatter_reduce_(0, tensor, numbers.abs().amax(dim=1), "amax")
        return ROUNDING * most[tensor].unsqueeze(1) + SUMS * self._weights[blocks]
