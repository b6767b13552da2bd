"""Masks of dropout depend on the place in the whole model and batch, on nothing of the layout."""

import hypothesis.strategies as st
import torch
from hypothesis import given

from mimokit.engine.models.dropout import hashed


def places(first: int, stop: int) -> torch.Tensor:
    return torch.arange(first, stop, dtype=torch.int32)


@given(st.integers(0, 6), st.integers(0, 9), st.integers(-(2**31), 2**31 - 1))
def test_a_rank_computes_its_part_of_a_mask(sample: int, position: int, start: int) -> None:
    rows = hashed(torch.full((1,), start, dtype=torch.int32), places(0, 8))[0]
    whole = hashed(rows, places(0, 12), places(0, 16))
    part = hashed(rows[sample:], places(position, 12), places(8, 16))
    assert torch.equal(whole[sample:, position:, 8:], part)


def test_hashes_are_as_random_as_they_have_to_be() -> None:
    rows = hashed(torch.tensor([5], dtype=torch.int32), places(0, 64))[0]
    bits = (hashed(rows, places(0, 64), places(0, 256))[..., None] >> torch.arange(32)) & 1
    bits = bits.flatten(0, 2).float()
    assert (bits.mean(0) - 0.5).abs().max() < 0.002, "a standard deviation is 0.0005"
    together = torch.corrcoef(bits.T).fill_diagonal_(0.0)
    assert together.abs().max() < 0.006, "bits of a number do not follow from each other"
    for axis in range(3):
        mask = (hashed(rows, places(0, 64), places(0, 256)) < 0).float() - 0.5
        beside = mask * mask.roll(1, axis)
        assert abs(float(beside.mean())) < 0.002, "nor do those of neighbours"
