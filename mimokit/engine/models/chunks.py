"""The chunks of a language model that one rank of an interleaved pipeline holds."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mimokit.engine.megatron import GPTModel, ModuleSpec, ProcessGroupCollection, TransformerConfig


class LanguageChunks(torch.nn.Module):
    """Several parts of a language model, each with other layers; stages compute one of them.

    Its parameters are one module to whoever reduces, steps or saves them.

    Attributes:
        chunks: in the order of their layers.
        config: of all of them.
    """

    def __init__(self, config: TransformerConfig, specs: Sequence[ModuleSpec]) -> None:
        super().__init__()
        self.chunks = torch.nn.ModuleList(spec.module(**spec.params) for spec in specs)
        self.config = config

    @property
    def embedding(self) -> torch.nn.Module:
        """The embedding, on the ranks of the first stage."""
        return self.chunks[0].embedding  # type: ignore[return-value]

    @property
    def pg_collection(self) -> ProcessGroupCollection:
        """The process groups of all chunks."""
        return self.chunks[0].pg_collection

    def sync_tied_embeddings(self) -> None:
        """Add the gradients of embeddings that two stages have; see `TiedGPTModel`."""
        for chunk in chunks_of(self):
            chunk.sync_tied_embeddings()


def chunks_of(module: torch.nn.Module) -> Sequence[GPTModel]:
    """Return the parts of a module that stages of this rank compute, in the order of layers."""
    return list(module.chunks) if isinstance(module, LanguageChunks) else [module]
