"""Multi-token prediction: layers behind a language model, each for a token further on.

DeepSeek-V3 (2024, arXiv:2412.19437), section 2.2. Layer k joins the hidden state of a position with
the embedding of the k-th token behind it, and predicts the token behind that one. The embedding of
a placeholder is its row of the table, as of every token, not the row of an encoder; a placeholder
above the vocabulary has zeros.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mimokit.engine import megatron
from mimokit.engine.models.rng import seed_weights
from mimokit.engine.models.transformer import ModuleBuild, SeededTransformerLayer, layer_spec
from mimokit.engine.parallel.context import SequenceCut
from mimokit.engine.parallel.sequence import SliceNorm

LOSS_WEIGHT = 0.1
"""Of Megatron's `TransformerConfig.mtp_loss_scaling_factor`."""
_SEEDS_OF_TABLES = 3
"""Seeds behind those of the layers, of embedding, positions and output layer."""


class _LayerBehind(SeededTransformerLayer):
    def __init__(
        self,
        config: megatron.TransformerConfig,
        *args: Any,
        layer_number: int,
        groups: megatron.ProcessGroupCollection,
        is_mtp_layer: bool = False,
        **options: Any,
    ) -> None:
        # From 0.19 on Megatron numbers these layers from 1.
        number = layer_number + config.num_layers * is_mtp_layer
        options["pg_collection"] = groups
        super().__init__(config, *args, layer_number=number, **options)


@dataclass(frozen=True)
class TokenPrediction:
    """The layers that predict tokens further on."""

    layers: int
    layer: megatron.ModuleSpec
    weight: float
    initial_seed: int

    def block(
        self, config: megatron.TransformerConfig, groups: megatron.ProcessGroupCollection
    ) -> megatron.MultiTokenPredictionBlock:
        """Return Megatron's block of them, as if they were on the only stage."""
        layer = megatron.ModuleSpec(
            module=_LayerBehind,
            params={**self.layer.params, "groups": groups},
            submodules=self.layer.submodules,
        )
        specs = [megatron.token_prediction_spec(layer, SliceNorm, groups)] * self.layers
        seed_weights(self.initial_seed)
        return megatron.MultiTokenPredictionBlock(
            config=self._behind(config),
            spec=megatron.MultiTokenPredictionBlockSubmodules(layer_specs=specs),
            pg_collection=groups,
        )

    def _behind(self, config: megatron.TransformerConfig) -> megatron.TransformerConfig:
        changed = copy.copy(config)
        changed.mtp_num_layers, changed.mtp_loss_scaling_factor = self.layers, self.weight
        changed.pipeline_model_parallel_size = 1
        changed.virtual_pipeline_model_parallel_size = None
        if isinstance(config.window_attn_skip_freq, list):
            changed.window_attn_skip_freq = [*config.window_attn_skip_freq, *[1] * self.layers]
        return changed


def token_prediction(build: ModuleBuild) -> TokenPrediction | None:
    """Return the layers that a language model has for tokens further on, if any."""
    network, weight = build.architecture, build.architecture.mtp_loss_scaling_factor
    if not network.mtp_num_layers:
        return None
    own = replace(build, seed=build.seed + _SEEDS_OF_TABLES)
    return TokenPrediction(
        network.mtp_num_layers,
        layer_spec(own, megatron.AttnMaskType.causal),
        LOSS_WEIGHT if weight is None else weight,
        initial_seed=own.seed + network.num_layers + network.mtp_num_layers + 1,
    )


@dataclass
class FurtherTokens:
    """What layers of multi-token prediction take and give for a micro-batch.

    Attributes:
        ids: of all tokens, [samples, tokens], also where ranks share sequences; of samples in a row
            [1, places]. Padding is 0, as Megatron has what follows the end of a sequence: what
            experts count must not depend on it.
        logits: one for each layer, [samples, tokens of this rank, vocabulary / TP].
    """

    ids: torch.Tensor
    logits: list[torch.Tensor] = field(default_factory=list)


def copied_embedding(model: megatron.GPTModel, words: int) -> megatron.LanguageModelEmbedding:
    """Return the last stage's copy of the embedding, zero so far; a tied one is there already."""
    groups, length = model.pg_collection, model.max_sequence_length
    embedding = megatron.LanguageModelEmbedding(
        model.config, words, length, "none", scatter_to_sequence_parallel=False, tp_group=groups.tp
    )
    if model.share_embeddings_and_output_weights:
        embedding.word_embeddings.weight = model.output_layer.weight
    weight = embedding.word_embeddings.weight
    weight.data.zero_()
    weight.shared = True
    return embedding


def logits_further(
    model: megatron.GPTModel,
    ids: torch.Tensor,
    hidden_states: torch.Tensor,
    cut: SequenceCut,
    given: Mapping[str, Any],
) -> list[torch.Tensor]:
    """Return what `FurtherTokens` describes, on the last stage of a model.

    Args:
        hidden_states: of the model, [tokens of this rank, samples, hidden].
    """

    def embedding(input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        above = input_ids >= model.vocab_size
        words = model.embedding(input_ids.masked_fill(above, 0), None)
        return cut.on_rank(words.masked_fill(above.T[..., None], 0))

    taken = ("attention_mask", "rotary_pos_emb", "packed_seq_params")
    states = model.mtp(
        input_ids=ids,
        position_ids=ids,  # Megatron rolls them, and nothing reads them
        hidden_states=hidden_states,
        embedding=embedding,
        **{name: given[name] for name in taken},
    )
    tied = model.share_embeddings_and_output_weights
    weight = model.embedding.word_embeddings.weight if tied else None
    predicted = states.chunk(1 + len(model.mtp.layers))[1:]
    logits = (model.output_layer(state, weight=weight)[0] for state in predicted)
    return [each.transpose(0, 1).contiguous() for each in logits]


def predicts_further(language_model: torch.nn.Module) -> bool:
    """Return whether a stage of mimokit's language model predicts tokens further on."""
    return hasattr(language_model, "further") and language_model.mtp is not None


@contextlib.contextmanager
def predicting_further(
    language_model: megatron.GPTModel, ids: torch.Tensor | None
) -> Iterator[list[torch.Tensor]]:
    """Let the last stage of a model predict further tokens; yield their logits as they come.

    Args:
        ids: see `FurtherTokens`; None on a stage that reads no batch.
    """
    if ids is None or not predicts_further(language_model):
        yield []
        return
    language_model.further = further = FurtherTokens(ids)
    try:
        yield further.logits
    finally:
        language_model.further = None
