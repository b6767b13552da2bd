"""A text decoder behind the language model: its hidden states in, further tokens out.

The language model predicts the next token. A decoder reads its hidden states and predicts another
token, by default the one after the next. It is a head of multi-token prediction (Gloeckle et al.
2024, arXiv:2404.19737) with separate layers, width and ranks.
"""

from __future__ import annotations

from typing import Any

import torch

from mimokit.engine.megatron import AttnMaskType, GPTModel, ModuleSpec, TransformerConfig
from mimokit.engine.models.build import ModuleBuild
from mimokit.engine.models.transformer import WHOLE, StagePart, layer_spec


class TextDecoder(GPTModel):  # type: ignore[misc]
    """Megatron's `GPTModel` over rows instead of words: projection, layers, logits.

    Args:
        initial_seed: seed of the projection, which is replicated over tensor-parallel ranks.
        part: the part of it on this pipeline stage.
    """

    def __init__(
        self,
        config: TransformerConfig,
        input_size: int,
        initial_seed: int,
        part: StagePart,
        **options: Any,
    ) -> None:
        super().__init__(config, pre_process=False, post_process=part.last, **options)
        self.part = part
        if part.first:
            torch.manual_seed(initial_seed)
            self.projection = torch.nn.Parameter(torch.empty(config.hidden_size, input_size))
            config.init_method(self.projection)

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Run the part of this stage.

        Args:
            hidden: [tokens, samples, width]; the width is that of the rows on the first stage.
            attention_mask: [1, 1, tokens, tokens], True where attention is forbidden.

        Returns:
            [tokens, samples, hidden]; on the last stage logits [samples, tokens, vocabulary / TP].
        """
        if self.part.first:
            hidden = torch.nn.functional.linear(hidden, self.projection)
        self.set_input_tensor(hidden)
        output: torch.Tensor = super().forward(
            input_ids=None, position_ids=None, attention_mask=attention_mask
        )
        return output


def text_decoder_spec(build: ModuleBuild) -> ModuleSpec:
    """Return the spec of a decoder; the provider injects groups and stage."""
    network = build.architecture
    return ModuleSpec(
        module=TextDecoder,
        params={
            "config": build.config,
            "input_size": build.language.hidden_size,
            "initial_seed": build.seed,
            "part": WHOLE,
            "transformer_layer_spec": layer_spec(network, build.seed, AttnMaskType.causal),
            "vocab_size": network.vocab_size,
            "max_sequence_length": network.seq_length,
            "position_embedding_type": "rope",
            "pg_collection": None,
        },
    )
