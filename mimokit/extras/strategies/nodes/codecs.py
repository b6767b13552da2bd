"""Numbers in few bits: a scale per block or chunk, and whole numbers of b bits.

scale = largest magnitude / (2 ** (b - 1) - 1); a number becomes the nearest multiple of it. Two
bits hold -1, 0 and 1 times the scale. What rounding loses is added to the next exchange (error
feedback), at the sender and where the sum is made.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mimokit.extras.strategies.exchanges.sizes import CODEC_BLOCK, SCALE_BYTES, low_bit_blocks
from mimokit.extras.strategies.nodes import communicate


def encode(rows: Tensor, bits: int) -> Tensor:
    """Return rows of numbers as rows of bytes: the scale, then whole numbers of 2 to 8 bits.

    [rows, numbers] of fp32 become [rows, 4 + ceil(numbers * bits / 8)] of uint8.
    """
    most = 2 ** (bits - 1) - 1
    scales = rows.abs().amax(dim=1, keepdim=True) / most
    whole = torch.round(rows / scales.where(scales > 0, 1)).clamp(-most, most)
    packed = pack((whole + most).to(torch.uint8), bits)
    return torch.cat([scales.contiguous().view(torch.uint8).view(-1, SCALE_BYTES), packed], dim=1)


def decode(packed: Tensor, bits: int, numbers: int) -> Tensor:
    """Return the rows of numbers that `encode` packed."""
    # A copy, since a view in another type needs rows of a multiple of its size.
    scales = packed[:, :SCALE_BYTES].flatten().clone().view(torch.float32).unsqueeze(1)
    whole = unpack(packed[:, SCALE_BYTES:], bits, numbers).to(torch.float32)
    numbers_of_rows: Tensor = (whole - (2 ** (bits - 1) - 1)) * scales
    return numbers_of_rows


def pack(whole: Tensor, bits: int) -> Tensor:
    """Return [rows, numbers] of whole numbers below 2 ** bits as [rows, bytes]."""
    if bits == 8:
        return whole
    if bits == 4 and whole.shape[1] % 2 == 0:
        return whole[:, 0::2] * 16 + whole[:, 1::2]
    shifts = torch.arange(bits - 1, -1, -1, dtype=torch.uint8, device=whole.device)
    ones = ((whole.unsqueeze(-1) >> shifts) & 1).flatten(1)
    ones = torch.nn.functional.pad(ones, (0, -ones.shape[1] % 8))
    places = 2 ** torch.arange(7, -1, -1, dtype=torch.uint8, device=whole.device)
    return (ones.view(len(whole), -1, 8) * places).sum(-1).to(torch.uint8)


def unpack(packed: Tensor, bits: int, numbers: int) -> Tensor:
    """Return the whole numbers that `pack` packed."""
    if bits == 8:
        return packed
    if bits == 4 and numbers % 2 == 0:
        return torch.stack([packed >> 4, packed & 15], dim=-1).flatten(1)
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=packed.device)
    ones = ((packed.unsqueeze(-1) >> shifts) & 1).flatten(1)[:, : numbers * bits]
    places = 2 ** torch.arange(bits - 1, -1, -1, dtype=torch.uint8, device=packed.device)
    return (ones.reshape(len(packed), numbers, bits) * places).sum(-1)


class LowBitMean:
    """The mean of a flat tensor over a group in low bits, summed in fp32."""

    def __init__(self, bits: int, entries: int, device: torch.device) -> None:
        self._bits = bits
        self.error = torch.zeros(entries, device=device)
        self.error_of_sum = torch.zeros(0, device=device)

    @torch.no_grad()
    def mean(self, values: Tensor, group: Sequence[int], rank: int) -> Tensor:
        """Return the mean over a group, the same bits on all members."""
        entries = len(values)
        blocks = low_bit_blocks(entries, len(group))
        length = len(group) * blocks * CODEC_BLOCK
        wanted = _padded(values.to(torch.float32) + self.error, length)
        packed = encode(wanted.view(-1, CODEC_BLOCK), self._bits)
        self.error = (wanted - self._numbers(packed))[:entries]
        self.error_of_sum = _padded(self.error_of_sum, length)
        first = group.index(rank) * blocks * CODEC_BLOCK
        lost = self.error_of_sum[first : first + blocks * CODEC_BLOCK]

        def add(parts: list[Tensor]) -> Tensor:
            total = sum(map(self._numbers, parts), torch.zeros_like(lost)) / len(group) + lost
            done = encode(total.view(-1, CODEC_BLOCK), self._bits)
            lost.copy_(total - self._numbers(done))
            return done

        parts = communicate.low_bit_sum(packed, group, entries, add)
        total = torch.cat([self._numbers(part) for part in parts])
        return total[:entries].to(values.dtype)

    def _numbers(self, packed: Tensor) -> Tensor:
        return decode(packed, self._bits, CODEC_BLOCK).view(-1)


def _padded(numbers: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(numbers, (0, max(0, length - len(numbers))))
