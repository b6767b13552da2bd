"""Queries and values with a bias, and keys without."""

import torch

from mimokit.engine.models.key_bias import LinearWithoutKeyBias

HEADS, GROUPS, WIDTH = 4, 2, 4


def _added_on_rank(groups=GROUPS):
    """Return what the bias of this rank, 1, 2, 3…, adds, in rows of a head."""
    import torch.distributed as dist

    from mimokit.engine.megatron import TransformerConfig

    config = TransformerConfig(
        num_layers=1, hidden_size=HEADS * WIDTH, num_attention_heads=HEADS,
        num_query_groups=groups, kv_channels=WIDTH, use_cpu_initialization=True,
        tensor_model_parallel_size=2, gradient_accumulation_fusion=False,
    )  # fmt: skip
    layer = LinearWithoutKeyBias(
        5, (HEADS + 2 * groups) * WIDTH, config=config, init_method=torch.nn.init.normal_,
        gather_output=False, bias=True, skip_bias_add=False, tp_group=dist.group.WORLD,
    )  # fmt: skip
    with torch.no_grad():
        layer.bias.copy_(torch.arange(1, len(layer.bias) + 1))
        output, later = layer(torch.zeros(1, 1, 5))
    assert later is None
    return output.view(-1, WIDTH)


def test_keys_have_no_bias(cluster):
    for added in cluster.run(_added_on_rank, world_size=2):
        assert added.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0], [9, 10, 11, 12]]


def test_keys_of_a_group_that_ranks_share_have_no_bias(cluster):
    first, second = cluster.run(_added_on_rank, 1, world_size=2)
    assert first.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 1, 2]]
    assert second.tolist() == [[3, 4, 5, 6], [0, 0, 0, 0], [7, 8, 9, 10]]
