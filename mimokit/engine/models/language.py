"""The language model: Megatron's `GPTModel`."""

from __future__ import annotations

from mimokit.config import ModuleArchitecture, ModuleParallelismConfig
from mimokit.engine.megatron import GPTModel, ModuleSpec, get_gpt_layer_local_spec
from mimokit.engine.models.layer import seeded
from mimokit.engine.models.transformer import WHOLE, StagePart, transformer_config


def language_model_spec(
    architecture: ModuleArchitecture,
    parallelism: ModuleParallelismConfig,
    initial_seed: int = 0,
    part: StagePart = WHOLE,
) -> ModuleSpec:
    """Return the spec of a decoder-only language model; the provider injects `pg_collection`.

    Positions are rotary, so that they hold for image tokens as well: `MimoModel` adds learned
    position embeddings to text tokens only.
    """
    return ModuleSpec(
        module=GPTModel,
        params={
            "config": transformer_config(architecture, parallelism),
            "transformer_layer_spec": seeded(get_gpt_layer_local_spec(), initial_seed),
            "vocab_size": architecture.vocab_size,
            "max_sequence_length": architecture.seq_length,
            "position_embedding_type": "rope",
            "pre_process": part.first,
            "post_process": part.last,
            "pg_collection": None,
        },
    )
