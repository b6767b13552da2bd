"""The fused matrix of queries, keys and values, whose keys have no bias (Whisper)."""

from __future__ import annotations

from typing import Any

import torch

from mimokit.engine.megatron import ColumnParallelLinear, TransformerConfig, tensor_parallel


class LinearWithoutKeyBias(ColumnParallelLinear):  # type: ignore[misc]
    """Megatron's `ColumnParallelLinear` with a bias for queries and values alone.

    A rank has whole query groups: the bias of a group's queries, then that of its value.
    """

    def __init__(self, *sizes: int, config: TransformerConfig, **options: Any) -> None:
        options |= {"bias": True, "skip_bias_add": True}
        super().__init__(*sizes, config=config, **options)
        queries = config.num_attention_heads // config.num_query_groups
        self._heads, self._width = queries, config.kv_channels
        whole: torch.Tensor = self._parameters.pop("bias")
        of_groups = whole.detach().view(-1, queries + 2, self._width)
        bias = torch.nn.Parameter(of_groups[:, 1:].flatten())  # all are zero
        tensor_parallel.set_tensor_model_parallel_attributes(bias, True, 0, 1)
        bias.allreduce = True  # type: ignore[attr-defined]
        self.bias = bias

    def forward(self, hidden: torch.Tensor, *args: Any, **options: Any) -> Any:
        """Return queries, keys and values, biases added, and None in place of a bias."""
        output, bias = super().forward(hidden, *args, **options)
        of_groups = bias.view(-1, self._heads + 1, self._width)
        queries, value = of_groups[:, :-1], of_groups[:, -1:]
        whole = torch.cat((queries, torch.zeros_like(value), value), dim=1)
        return output + whole.flatten(), None
