"""Collectives of attention of a kind that `layer_collectives` does not count.

Of latent attention every rank compresses its own positions. What it has for its heads comes of
three tensors, where other attention has one: compressed queries (hidden states, if these are not
compressed), compressed keys and values, and the rotary key that all heads share.

| per layer | forward | backward |
|---|---|---|
| latent | | 3 all-reduces in place of 1 |
| latent, with sequence parallelism | 3 all-gathers in place of 1 | 3 reduce-scatters and 2 \
all-gathers in place of 1 each |
| keys without a bias, fewer than ranks | 1 all-gather of biases more | 1 reduce-scatter more |

Backward, the inputs of two latent matrices are gathered again; no matrix takes the rotary key. What
is frozen gathers no inputs again, and its biases have no gradient.
"""

from __future__ import annotations

from mimokit.architecture.parallel_sizes import RECOMPUTE_FULL, ParallelSizes
from mimokit.architecture.transformer import Transformer


def attention_calls(net: Transformer, sizes: ParallelSizes, trains: bool) -> tuple[int, int]:
    """Return how many of them ranks of a tensor-parallel group have in a layer, in both passes.

    Args:
        trains: whether the layer does.
    """
    if net.mla is not None:
        ahead, back = (2, 2 + int(trains)) if sizes.sequence_parallel else (0, 2)
    else:
        of_biases = net.qkv_bias and not net.key_bias and sizes.tensor > net.kv_heads
        ahead, back = int(of_biases), int(of_biases and trains)
    return ahead, back + (ahead if sizes.recompute == RECOMPUTE_FULL else 0)
