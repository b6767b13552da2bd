"""The chunks of a module that one rank of an interleaved pipeline holds."""

from collections.abc import Sequence
from typing import Any

import torch

from mimokit.engine.megatron import (
    ModuleSpec,
    ProcessGroupCollection,
    TransformerConfig,
    build_module,
)


class ModuleChunks(torch.nn.Module):
    """Several parts of a module, each with other layers; stages compute one of them.

    Its parameters are one module to whoever reduces, steps or saves them.

    Attributes:
        chunks: in the order of their layers.
        config: of all chunks of a language model or a decoder; None of a modality.
    """

    def __init__(self, config: TransformerConfig | None, specs: Sequence[ModuleSpec]) -> None:
        super().__init__()
        self.config = config
        self.chunks = torch.nn.ModuleList(built(spec) for spec in specs)

    @property
    def embedding(self) -> torch.nn.Module:
        """The embedding of a language model, on the ranks of the first stage."""
        return self.chunks[0].embedding  # type: ignore[return-value]

    @property
    def pg_collection(self) -> ProcessGroupCollection:
        """The process groups of all chunks of a language model or a decoder."""
        return self.chunks[0].pg_collection

    def sync_tied_embeddings(self) -> None:
        """Add the gradients of embeddings that two stages have; see `TiedGPTModel`."""
        for chunk in chunks_of(self):
            sync = getattr(chunk, "sync_tied_embeddings", None)
            if sync is not None:
                sync()


def built(spec: ModuleSpec) -> Any:
    """Return the module of a spec, of a modality with what its submodules are built from."""
    from_spec = getattr(spec.module, "from_spec", None)
    return build_module(spec) if from_spec is None else from_spec(spec)


def chunks_of(module: torch.nn.Module) -> Sequence[Any]:
    """Return the parts of a module that stages of this rank compute, in the order of layers."""
    return list(module.chunks) if isinstance(module, ModuleChunks) else [module]
