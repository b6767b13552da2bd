"""The fused matrix of queries, keys and values, whose keys have no bias (Whisper)."""

from typing import Any

import torch

from mimokit.engine.megatron import ColumnParallelLinear, TransformerConfig, tensor_parallel


class LinearWithoutKeyBias(ColumnParallelLinear):  # type: ignore[misc]
    """Megatron's `ColumnParallelLinear` with a bias for queries and values alone.

    The bias is that of a group's queries, then that of its value, group after group. Ranks share it
    evenly, as they do the rows of the matrix; where several ranks share a group, they gather it.
    """

    def __init__(self, *sizes: int, config: TransformerConfig, **options: Any) -> None:
        options |= {"bias": True, "skip_bias_add": True}
        super().__init__(*sizes, config=config, **options)
        groups, ranks = config.num_query_groups, config.tensor_model_parallel_size
        self._heads, self._width = config.num_attention_heads // groups, config.kv_channels
        self._gathers = groups < ranks
        whole: torch.Tensor = self._parameters.pop("bias")  # all are zero
        entries = groups * (self._heads + 1) * self._width
        bias = torch.nn.Parameter(whole.detach().new_zeros(entries // ranks))
        tensor_parallel.set_tensor_model_parallel_attributes(bias, True, 0, 1)
        bias.allreduce = True  # type: ignore[attr-defined]
        self.bias = bias

    def forward(self, hidden: torch.Tensor, *args: Any, **options: Any) -> Any:
        """Return queries, keys and values, biases added, and None in place of a bias."""
        output, bias = super().forward(hidden, *args, **options)
        if self._gathers:
            bias = tensor_parallel.all_gather_last_dim_from_tensor_parallel_region(
                bias[None], self.tp_group
            )
        of_groups = bias.view(-1, self._heads + 1, self._width)
        queries, value = of_groups[:, :-1], of_groups[:, -1:]
        whole = torch.cat((queries, torch.zeros_like(value), value), dim=1).flatten()
        if self._gathers:
            whole = whole.chunk(self.tp_group.size())[self.tp_group.rank()]
        return output + whole, None
