"""Digests of tensors that ranks compare, taken where the tensor is."""

import functools

import torch

CHUNK = 2**18
"""Entries that are weighted at once; 2 MiB of products."""

STEP = 0x5851F42D4C957F2B
"""Odd, and 3 more than a multiple of 8: its powers differ in their low bits."""

_INTEGERS = {1: torch.uint8, 2: torch.int16}


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """Return a checksum of the bits of a tensor and of their places: int64 on its device.

    It is a sum of the entries' bits, each times a number that belongs to its place, modulo 2**64:
    two entries that are exchanged change it, strides do not. A contiguous tensor is not copied.
    """
    flat = tensor.detach().contiguous().view(-1)
    # Entries of 8 bytes count as two: the products of whole ones would lose high bits.
    bits = flat.view(_INTEGERS.get(flat.element_size(), torch.int32))
    numbers = _numbers(CHUNK, bits.device)
    total = torch.full((), len(bits), dtype=torch.int64, device=bits.device)
    for start in range(0, len(bits), CHUNK):
        part = bits[start : start + CHUNK]
        total = total * STEP + (part * numbers[: len(part)]).sum()
    return total


@functools.cache
def _numbers(places: int, device: torch.device) -> torch.Tensor:
    whole = torch.iinfo(torch.int64)
    draw = torch.Generator().manual_seed(0)
    return (torch.randint(whole.min, whole.max, (places,), generator=draw) | 1).to(device)
