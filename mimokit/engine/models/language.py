"""The language model: Megatron's `GPTModel`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from mimokit.config import ModuleArchitecture
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import GPTModel, ModuleSpec, get_gpt_layer_local_spec
from mimokit.engine.models.transformer import seeded, transformer_config
from mimokit.planning.ranks import RankMap


class TiedGPTModel(GPTModel):  # type: ignore[misc]
    """Megatron's `GPTModel` whose tied embeddings are copied between stages without CUDA.

    With tied embeddings the first and the last pipeline stage each have a copy of one matrix. The
    copies are made equal here and stay equal if `sync_tied_embeddings` is called before every
    optimizer step. The copy on the last stage is marked `shared`, so that norms leave it out.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        weight = self._tied_copy()
        if weight is not None:
            start = weight.detach().to(rank_device())
            dist.all_reduce(start, group=self.embd_group)  # the last stage's is zero so far
            weight.data.copy_(start)

    def _is_in_embd_group(self) -> bool:
        # Only Megatron's own copying asks, which calls `.cuda()` on every device.
        return False

    def _tied_copy(self) -> torch.nn.Parameter | None:
        """Return this stage's copy of the matrix where two stages have one, else None."""
        if not self.share_embeddings_and_output_weights or self.pre_process == self.post_process:
            return None
        weight: torch.nn.Parameter = self.shared_embedding_or_output_weight()
        return weight

    def sync_tied_embeddings(self) -> None:
        """Add the gradients of embedding and output layer where two stages have a copy.

        Collective over first and last stage of a pipeline, after the reduction over replicas
        (Megatron's `_allreduce_word_embedding_grads`). On a single stage autograd has added them.
        """
        weight = self._tied_copy()
        if weight is not None and weight.requires_grad:
            dist.all_reduce(weight.main_grad, group=self.embd_group)  # type: ignore[attr-defined]


@contextlib.contextmanager
def hidden_states_of(language_model: GPTModel) -> Iterator[list[torch.Tensor]]:
    """Collect the output of the layers on a rank, [tokens, samples, hidden].

    On the last stage Megatron returns the logits only, without these hidden states.
    """
    found: list[torch.Tensor] = []
    hook = language_model.decoder.register_forward_hook(
        lambda _, given, output: found.append(output)
    )
    try:
        yield found
    finally:
        hook.remove()


def language_model_spec(
    architecture: ModuleArchitecture, sizes: RankMap, initial_seed: int = 0
) -> ModuleSpec:
    """Return the spec of a decoder-only language model; the provider injects groups and stage.

    Positions are rotary, so that image tokens have them as well: `MimoModel` adds learned position
    embeddings to text tokens only. Positions of three axes must be passed to the model.
    """
    return ModuleSpec(
        module=TiedGPTModel,
        params={
            "config": transformer_config(architecture, sizes),
            "transformer_layer_spec": seeded(get_gpt_layer_local_spec(), initial_seed),
            "vocab_size": architecture.vocab_size,
            "max_sequence_length": architecture.seq_length,
            "position_embedding_type": "mrope" if architecture.mrope_section else "rope",
            "share_embeddings_and_output_weights": architecture.tied_embeddings,
            "pre_process": True,
            "post_process": True,
            "pg_collection": None,
        },
    )
