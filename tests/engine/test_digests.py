"""A digest changes with any entry and any place, and with nothing else."""

import pytest
import torch

from mimokit.engine import digests
from mimokit.engine.digests import digest

DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64)


def of(tensor: torch.Tensor) -> int:
    return int(digest(tensor))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exchanged_and_changed_entries_are_seen(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "CHUNK", 16)  # of several chunks, the last one shorter
    whole = (torch.arange(70) % 7 + 1).to(dtype).view(7, 10)
    seen = {of(whole)}
    flat = whole.view(-1)
    others = 0
    for first in range(len(flat)):
        for second in range(first):
            if flat[first] != flat[second]:
                other = flat.clone()
                other[[first, second]] = flat[[second, first]]
                seen.add(of(other))
                others += 1
        changed = flat.clone()
        changed[first] = 0
        seen.add(of(changed))
        others += 1
    assert len(seen) == others + 1
    assert others > 2_000
    halves = torch.cat((flat[32:64], flat[:32], flat[64:]))
    assert of(halves) != of(whole)


def test_strides_do_not_matter_and_lengths_do() -> None:
    whole = torch.randn(30, 20)
    assert of(whole.T.contiguous().T) == of(whole)
    assert of(torch.zeros(3)) != of(torch.zeros(4))
    assert of(torch.tensor(2.0)) == of(torch.tensor([2.0]))
    assert of(torch.empty(0)) == of(torch.empty(0))


def test_two_full_chunks_that_are_exchanged_are_seen() -> None:
    one, other = torch.zeros(digests.CHUNK), torch.ones(digests.CHUNK)
    assert of(torch.cat((one, other))) != of(torch.cat((other, one)))
