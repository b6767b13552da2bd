"""Bytes of exchanges: what a node gives to a collective, and what it sends then.

| operation | what a node of n sends, with a payload of S bytes |
|---|---|
| all_reduce, low_bit_all_reduce, gossip | 2 (n - 1) / n of S, as in a ring |
| all_gather | (n - 1) S |
| broadcast | S, along a chain that ends at one node, which sends nothing |
"""

import math
from collections.abc import Sequence
from typing import Literal

Operation = Literal["all_reduce", "low_bit_all_reduce", "gossip", "all_gather", "broadcast"]

CODEC_BLOCK = 256
"""Entries that share a scale in low-bit transport."""

SCALE_BYTES = 4
INDEX_BYTES = 2
"""Of an index within a block or chunk of at most 65,536 entries."""


def sent_bytes(operation: Operation, payload: float, members: int) -> float:
    """Return the bytes that a member of a group sends; of a broadcast the mean of the members."""
    if members < 2:
        return 0
    match operation:
        case "all_gather":
            return (members - 1) * payload
        case "broadcast":
            return (members - 1) / members * payload
        case _:
            return 2 * (members - 1) / members * payload


def low_bit_blocks(entries: int, members: int) -> int:
    """Return the blocks of each member's part in a low-bit all-reduce."""
    return math.ceil(math.ceil(entries / CODEC_BLOCK) / members)


def low_bit_bytes(entries: int, bits: int, members: int) -> int:
    """Return the payload of a low-bit all-reduce: as many whole blocks for each member."""
    blocks = members * low_bit_blocks(entries, members)
    return blocks * (CODEC_BLOCK * bits // 8 + SCALE_BYTES)


def demo_blocks(shape: Sequence[int], chunk: int) -> tuple[int, tuple[int, ...]]:
    """Return (blocks, sides of a block) of DeMo for a tensor.

    Of more than two dimensions all but the first are folded into the second. A side is the
    largest divisor of a dimension that is at most `chunk`.
    """
    folded = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (math.prod(shape),)
    sides = tuple(largest_divisor(length, chunk) for length in folded)
    return math.prod(folded) // max(1, math.prod(sides)), sides


def demo_bytes(shape: Sequence[int], chunk: int, topk: int, value_bytes: int) -> int:
    """Return what DeMo sends of a tensor: index and value of each coefficient that is kept."""
    blocks, sides = demo_blocks(shape, chunk)
    return blocks * min(topk, math.prod(sides)) * (INDEX_BYTES + value_bytes)


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor that is at most `most`; 0 of 0."""
    return next((side for side in range(min(number, most), 0, -1) if number % side == 0), 0)


def kept_of_chunk(length: int, density: float) -> int:
    """Return how many entries of a chunk SparseLoCo keeps: at least one."""
    return max(1, round(density * length))


def sparse_bytes(entries: int, chunk: int, density: float, bits: int) -> int:
    """Return what SparseLoCo sends of a tensor: indices, packed values and a scale per chunk."""
    whole, rest = divmod(entries, chunk)
    return sum(
        count * (kept * INDEX_BYTES + math.ceil(kept * bits / 8) + SCALE_BYTES)
        for count, length in ((whole, chunk), (1, rest))
        if count and length
        for kept in [kept_of_chunk(length, density)]
    )
