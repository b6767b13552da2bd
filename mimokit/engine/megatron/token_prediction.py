"""Megatron-Core's layers of multi-token prediction, in the process groups of their module."""

from functools import partial
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import checkpoint
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.tensor_parallel.mappings import (
    gather_from_tensor_model_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.transformer import multi_token_prediction
from megatron.core.transformer.multi_token_prediction import (
    MultiTokenPredictionLayer,
    get_mtp_layer_spec,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig


class _ColumnsOfGroup(ColumnParallelLinear):  # type: ignore[misc]
    """The projection of token and hidden state; 0.16 names no group where it builds it."""

    def __init__(self, *args: Any, group: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "tp_group": group})


class TokenPredictionLayer(MultiTokenPredictionLayer):  # type: ignore[misc]
    """Megatron's layer, which takes whole token ids on every context-parallel rank.

    The embedding that it is called with cuts what it returns. 0.16 takes global groups, and has
    another name for the transformer layer inside, which is that of 0.19 here.
    """

    def __init__(
        self,
        config: TransformerConfig,
        submodules: Any,
        *args: Any,
        pg_collection: ProcessGroupCollection,
        **options: Any,
    ) -> None:
        super().__init__(config, submodules, *args, pg_collection=pg_collection, **options)
        if "transformer_layer" in self._modules:
            self.mtp_model_layer = self._modules.pop("transformer_layer")
        self.cp_group = None  # of the ranks that a roll of the ids would exchange ends with
        self._group = pg_collection.tp

    @property
    def transformer_layer(self) -> torch.nn.Module:
        """The transformer layer inside."""
        layer: torch.nn.Module = self.mtp_model_layer
        return layer

    def _concat_embeddings(
        self, hidden_states: torch.Tensor, decoder_input: torch.Tensor
    ) -> torch.Tensor:
        both = torch.cat((self.enorm(decoder_input), self.hnorm(hidden_states)), -1)
        joined, _ = self.eh_proj(both)
        joined = gather_from_tensor_model_parallel_region(joined, group=self._group)
        if self.sequence_parallel:
            joined = scatter_to_sequence_parallel_region(joined, group=self._group)
        return joined  # type: ignore[no-any-return]

    def _checkpointed_forward(
        self, *args: Any, hidden_states: torch.Tensor, decoder_input: torch.Tensor, **others: Any
    ) -> torch.Tensor:
        """Keep tensors alone until the backward pass; 0.16 keeps what else it is given, too."""

        def run(hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            return self._proj_and_transformer_layer(  # type: ignore[no-any-return]
                hidden_states=hidden, decoder_input=tokens, **others
            )

        return checkpoint(run, False, hidden_states, decoder_input)  # type: ignore[no-any-return]


def token_prediction_spec(
    layer: ModuleSpec, norm: type, groups: ProcessGroupCollection
) -> ModuleSpec:
    """Return the spec of a layer of multi-token prediction around a transformer layer."""
    spec = get_mtp_layer_spec(layer, False)
    spec.module, parts = TokenPredictionLayer, spec.submodules
    parts.enorm = parts.hnorm = parts.layer_norm = norm
    parts.eh_proj = ModuleSpec(module=_ColumnsOfGroup, params={"group": groups.tp})
    return spec


def count_from_first_stage() -> None:
    """Let 0.16 number the layers without global groups: all are on one stage, the last."""
    name = "get_transformer_layer_offset"
    if hasattr(multi_token_prediction, name):
        offset = partial(getattr(multi_token_prediction, name), pp_rank=0)
        setattr(multi_token_prediction, name, offset)
