"""Cross entropy over a cut vocabulary."""

import pytest
import torch

from mimokit.engine.parallel.loss import masked_loss_sum


def _losses_and_gradients(logits, labels):
    import torch
    import torch.distributed as dist

    from mimokit.engine.parallel.loss import vocab_parallel_cross_entropy

    group = dist.group.WORLD
    whole = torch.tensor(logits, dtype=torch.float32)
    mine = whole.chunk(group.size(), dim=-1)[group.rank()].clone().requires_grad_()
    losses = vocab_parallel_cross_entropy(mine, torch.tensor(labels), group)
    losses.sum().backward()
    return losses.tolist(), mine.grad.tolist(), mine.detach().tolist()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_loss_and_gradient_are_those_of_torch_in_full_precision(cluster, world_size):
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(2, 3, 8, generator=generator) * 4).requires_grad_()
    labels = torch.randint(0, 8, (2, 3), generator=generator)
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none"
    )
    expected.sum().backward()
    results = cluster.run(
        _losses_and_gradients, logits.tolist(), labels.tolist(), world_size=world_size
    )
    for losses, _, _ in results:
        torch.testing.assert_close(torch.tensor(losses).flatten(), expected.detach())
    gradient = torch.cat([torch.tensor(part) for _, part, _ in results], dim=-1)
    # Megatron's fused loss rounds here to bfloat16, which is 1000 times coarser.
    torch.testing.assert_close(gradient, logits.grad, rtol=1e-5, atol=1e-7)
    untouched = torch.cat([torch.tensor(part) for _, _, part in results], dim=-1)
    torch.testing.assert_close(untouched, logits.detach())


def test_nothing_unmasked_is_zero_not_nan():
    total, tokens = masked_loss_sum(torch.ones(2, 3), torch.zeros(2, 3))
    assert (float(total), tokens) == (0.0, 0)


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(
        ValueError, match=r"loss mask has shape \(2,\) but the losses have \(2, 3\)"
    ):
        masked_loss_sum(torch.ones(2, 3), torch.ones(2))
