"""The same tokens on every rank, for any number of ranks."""

from typing import Any

import pytest
import torch

from mimokit.extras.generation import sample
from tests.extras.generation.test_sampling import SETTINGS, logits

VOCAB = 1_003  # padded to 1,008: 8 ranks have 126 columns each, the last 5 of them padding
EVERYTHING = [{}, *SETTINGS]


def _on_rank(
    whole: torch.Tensor, ids: torch.Tensor, settings: list[dict[str, Any]], vocab: int
) -> dict[int, Any]:
    """Sample with groups of 2, 4 and 8 ranks; returns size -> tokens of each setting."""
    import torch
    import torch.distributed as dist

    from mimokit.extras.generation import sample

    found: dict[int, Any] = {}
    for size in (2, 4, 8):
        made = [dist.new_group(range(first, first + size)) for first in range(0, 8, size)]
        group = made[dist.get_rank() // size]
        shard = whole.chunk(size, dim=1)[group.rank()]
        found[size] = [
            sample(shard, group, token_ids=ids, seed=3, step=9, vocab_size=vocab, **how).tolist()
            for how in settings
        ]
        broken = shard.clone()
        if group.rank() == size - 1:
            broken[2, 1] = torch.nan
        try:
            sample(broken, group, vocab_size=vocab)
        except FloatingPointError as error:
            found[-size] = str(error)
        for one in made:
            dist.destroy_process_group(one)
    return found


def test_every_number_of_ranks_draws_the_same_tokens(cluster: Any) -> None:
    padded = torch.nn.functional.pad(logits(vocab=VOCAB), (0, 5), value=99.0)
    ids = torch.randint(0, VOCAB, (48, 20), generator=torch.Generator().manual_seed(2))
    alone = [
        sample(padded, None, token_ids=ids, seed=3, step=9, vocab_size=VOCAB, **how).tolist()
        for how in EVERYTHING
    ]
    assert len({tuple(one) for one in alone}) > 5  # settings matter
    results = cluster.run(_on_rank, padded, ids, EVERYTHING, VOCAB, world_size=8)
    for found in results:
        for size in (2, 4, 8):
            assert found[size] == alone
            assert found[-size] == f"The logits of rank {size - 1} are not finite in row 2."


def test_tokens_of_ranks_that_draw_apart_are_seen() -> None:
    """The source's way: a softmax per shard, as if each were the whole vocabulary."""
    whole = logits(vocab=VOCAB)
    right = sample(whole, None, temperature=1.0)
    halves = torch.cat([half.softmax(dim=1).log() for half in whole.split(502, dim=1)], dim=1)
    assert not torch.equal(sample(halves, None, temperature=1.0), right)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(halves.exp().sum(dim=1), torch.ones(48))
